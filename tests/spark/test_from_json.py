"""decode=json gives what Spark's own `from_json` gives, column by column, on any bytes."""

import json
from datetime import UTC
from random import Random

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from rt.spark.date_text import time_zone
from rt.spark.decode_json import JsonDecoder

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

SCHEMA = (
    "a int, b double, f float, s string, t tinyint, h smallint, l bigint, o boolean, d date, "
    "ts timestamp, n timestamp_ntz, c decimal(10,2), z decimal(38,18), x binary, "
    "m map<string,int>, y array<int>, q array<struct<i:int,s:string>>, "
    "r struct<i:int,d:double,s:string,y:array<double>>, w map<string,array<struct<i:int>>>"
)
# The types that Arrow parses; with another among the fields all payloads are read one by one.
FLAT = (
    "a int, b double, f float, s string, l bigint, o boolean, d date, ts timestamp, "
    "y array<int>, r struct<i:int,d:double,s:string>"
)
NAMES = "abfsthlodnczxmyqrwi"

BEFORE_DIGITS = (b"", b"-", b"1.", b"0.", b"-1.5e", b"1e-", b"1e")
TEXTS = [
    "",
    "x",
    "NaN",
    "2013-02-01",
    "2020-01-01 10:00:00",
    "2020-01-01T10:00:00.5Z",
    "1.5",
    "12",
    "aGk=",
    "\u00e9\u20ac",
    "\U0001f600",
    "\ud800",
    'a"b\\c/\n',
    "\x01",
    "INF",
    "2020",
    "1e3",
]
EDGES = [
    b"",
    b" ",
    b"\n",
    b"null",
    b"[]",
    b"{}",
    b" {} ",
    b"1",
    b'"x"',
    b'[{"a":1}]',
    b"{",
    b"}",
    b'{"a":1},"x":2',
    b'{"a":1} {"a":2}',
    b'{"a":1}x',
    b'{"a":1',
    b'{"a"',
    b'{"a":',
    b'{"a":1,',
    b'{"a":1,}',
    b'{,"a":1}',
    b'{"a" 1}',
    b'{"a":1 "b":2}',
    b'{"a":1,"a":2}',
    b'{"a":1,"a":null}',
    b'{"s":5}',
    b'{"s":1.10}',
    b'{"s":true}',
    b'{"s":{"x":[1,2.50,null,"\xc3\xa9"]}}',
    b'{"s":[]}',
    b'{"s":1e400}',
    b'{"s":-0}',
    b'{"s":-0.0}',
    b'{"s":1e5}',
    b'{"s":123456789.125}',
    b'{"s":NaN}',
    b'{"s":"\\ud800"}',
    b'{"s":"\\udc00x"}',
    b'{"s":"\\ud83d\\ude00"}',
    b'{"s":["\\ud83d\\ude00","\xf0\x9f\x98\x80","\\u0001\\n\\"\\\\/"]}',
    b'{"s":["\\ud800"]}',
    b'{"s":"\xff"}',
    b'{"s":"a\xed\xa0\x80b"}',
    b'{"s":"\xe2\x82"}',
    b'{"s":"\xf0\x9f"}',
    b'{"s":"\xf5\x80\x80\x80"}',
    b'{"s":"\xc0\x80"}',
    b'\xff{"a":1}',
    b'\xef\xbb\xbf{"a":1}',
    b'{"s":"x\ny"}',
    b'{"s":"x\n,"a":7}',
    b'{"s":"\\x"}',
    b'{"s":"\\\'"}',
    b"{'a':1,'s':'it''s'}",
    b"{'s':'a\"b'}",
    b"{a:1}",
    b'{"a":01}',
    b'{"a":-}',
    b'{"a":+1}',
    b'{"b":.5}',
    b'{"b":5.}',
    b'{"b":1e}',
    b'{"b":1e+5}',
    b'{"b":1e400}',
    b'{"b":-1e400}',
    b'{"b":1e-400}',
    b'{"b":-0}',
    b'{"b":-0.0}',
    b'{"b":NaN}',
    b'{"b":Infinity}',
    b'{"b":-Infinity}',
    b'{"b":+Infinity}',
    b'{"b":INF}',
    b'{"b":-INF}',
    b'{"b":+INF}',
    b'{"b":"NaN"}',
    b'{"b":"Infinity"}',
    b'{"b":"-INF"}',
    b'{"b":"1.5"}',
    b'{"b":""}',
    b'{"b":"INF"}',
    b'{"f":0.1}',
    b'{"f":1e39}',
    b'{"f":-0}',
    b'{"f":16777217}',
    b'{"f":1.00000017881393432617187499}',
    b'{"f":9007199791611905}',
    b'{"f":123456789012345678901}',
    b'{"b":123456789012345678901}',
    b'{"f":"NaN"}',
    b'{"a":2147483647}',
    b'{"a":2147483648}',
    b'{"a":1.0}',
    b'{"a":1e2}',
    b'{"a":"1"}',
    b'{"a":""}',
    b'{"t":127}',
    b'{"t":128}',
    b'{"t":255}',
    b'{"t":256}',
    b'{"t":-129}',
    b'{"h":32768}',
    b'{"l":9223372036854775807}',
    b'{"l":9223372036854775808}',
    b'{"l":12345678901234567890123}',
    b'{"o":true}',
    b'{"o":"true"}',
    b'{"o":1}',
    b'{"o":tru}',
    b'{"o":trues}',
    b'{"o":true"s":1}',
    b'{"d":"2013-02-01"}',
    b'{"d":"2013-2-1"}',
    b'{"d":"2013"}',
    b'{"d":"2013-02"}',
    b'{"d":5}',
    b'{"d":"2013-02-30"}',
    b'{"d":"2013-02-01T10:00:00"}',
    b'{"d":" 2013-02-01 "}',
    b'{"d":""}',
    b'{"d":"17000"}',
    b'{"d":"5"}',
    b'{"d":"-5"}',
    b'{"d":"-141428"}',
    b'{"d":"-719164"}',
    b'{"d":"-0044-03-15"}',
    b'{"d":"+2013-01-01"}',
    b'{"d":"2013-02-01x"}',
    b'{"d":"today"}',
    b'{"d":"GMT2013-02-01"}',
    b'{"d":"123456789"}',
    b'{"d":"0000-01-01"}',
    b'{"d":null}',
    b'{"ts":"2020-01-01 10:00:00"}',
    b'{"ts":"2020-01-01T10:00:00Z"}',
    b'{"ts":"2020-01-01"}',
    b'{"ts":"2020-01-01T10:00:00.1234567+02:00"}',
    b'{"ts":"2020-01-01 10:00:00 Europe/Berlin"}',
    b'{"ts":"2020-01-01 10"}',
    b'{"ts":"2020-01-01 10:3"}',
    b'{"ts":"2020-1-1 1:2:3"}',
    b'{"ts":100}',
    b'{"ts":1.5}',
    b'{"ts":9223372036854775807}',
    b'{"ts":"2020-01-01T"}',
    b'{"ts":"2020-01-01 25:00"}',
    b'{"ts":"2020-03-29 02:30:00 Europe/Berlin"}',
    b'{"ts":"2020-10-25 02:30:00 Europe/Berlin"}',
    b'{"ts":"2020-01-01 10:00:00 PST"}',
    b'{"ts":"2020-01-01 10:00:00+1:30"}',
    b'{"ts":"2020"}',
    b'{"ts":"2020-01-01 10:00:00GMT+01:00"}',
    b'{"ts":"2020-01-01 10:00:00+19:00"}',
    b'{"ts":"2020-01-01 10:00:00.5 UTC+2"}',
    b'{"ts":"-0044-03-15 12:00:00"}',
    b'{"ts":"100000"}',
    b'{"ts":"2020-01-01 10:00:00.x"}',
    b'{"ts":"1500-01-01 00:00:00"}',
    b'{"ts":"x"}',
    b'{"n":"2020-01-01 10:00:00"}',
    b'{"n":"2020-01-01 10:00:00Z"}',
    b'{"n":100}',
    b'{"n":"2020"}',
    b'{"c":1.005}',
    b'{"c":-1.005}',
    b'{"c":"1,234.5"}',
    b'{"c":99999999.994}',
    b'{"c":99999999.995}',
    b'{"c":1e7}',
    b'{"c":1e8}',
    b'{"c":1e-400}',
    b'{"c":1e400}',
    b'{"c":"1e3"}',
    b'{"c":"x"}',
    b'{"c":".5"}',
    b'{"c":"5."}',
    b'{"c":NaN}',
    b'{"c":" 1"}',
    b'{"c":true}',
    b'{"c":-0.001}',
    b'{"z":12345678901234567890.123456789012345678}',
    b'{"z":1}',
    b'{"z":123456789012345678901}',
    b'{"x":"aGk="}',
    b'{"x":"aGk"}',
    b'{"x":"aGk","a":5}',
    b'{"x":""}',
    b'{"x":"aG k="}',
    b'{"x":"!!!!","a":5}',
    b'{"x":5,"a":5}',
    b'{"x":"aGk=aGk="}',
    b'{"x":"aGk==="}',
    b'{"m":{"k":1,"k":2}}',
    b'{"m":{"k":null}}',
    b'{"m":{"k":"x","j":1},"a":3}',
    b'{"m":[],"a":3}',
    b'{"m":{}}',
    b'{"w":{"k":[{"i":1},{"i":"x"}]},"a":2}',
    b'{"w":{"k":[{"i":1},5]},"a":2}',
    b'{"y":[1,null,2]}',
    b'{"y":[1,"x",2],"a":1}',
    b'{"y":5,"a":1}',
    b'{"y":[1,[2],3],"a":1}',
    b'{"y":[1 2],"a":1}',
    b'{"y":[1,2,],"a":1}',
    b'{"y":[,],"a":1}',
    b'{"y":[1,2}',
    b'{"q":[{"i":1,"s":2},{"i":"x","s":"y"},null],"a":1}',
    b'{"q":[5],"a":1}',
    b'{"q":{"i":1},"a":1}',
    b'{"r":{"i":1,"d":2,"s":3,"y":[4]}}',
    b'{"r":{"i":"x","d":2},"a":1}',
    b'{"r":[1],"a":1}',
    b'{"r":{"i":1 "d":2},"a":1}',
    b'{"r":{"y":[1,"bad"],"i":7},"a":8}',
    b'{"r":null,"a":1}',
    b'{"r":{"y":[1,"bad",{"i":3}],"i":7},"a":8,"s":"z"}',
    b'{"r":5,"a":1}',
    b'{"r":"","a":1}',
    b'{"u":{"a":5},"a":1}',
    b'{"u":"x\ny","a":1}',
    b'{"\\u0061":1}',
    b'{"A":1}',
    b'{"a\n":1}',
    b'{"u":' + b"[" * 999 + b"]" * 999 + b',"a":1}',
    b'{"u":' + b"[" * 1001 + b"]" * 1001 + b',"a":1}',
    b'{"u":' + b"1" * 1000 + b',"a":1}',
    b'{"u":' + b"1" * 1001 + b',"a":1}',
    *(b'{"u":%s,"a":1}' % (a + b"1" * n) for n in range(996, 1003) for a in BEFORE_DIGITS),
    b'{"x":"aG="}',
    b'{"x":"a","a":5}',
    b'{"x":"aG=","a":5}',
    b"{'x':'a','a':5}",
    b'{"x":" aGk= aGk= "}',
    b'{"x":"aGl="}',
    b'{"x":"aH=="}',
    b'{"x":"aG\\u006b="}',
    b'{"r":{"i":tru},"a":1}',
    b'{"r":{"i":tru}},"a":1}',
    b"{/**/}",
    b'{"a":1//x\n}',
    b"#{}",
    b'{"a":1}\x00',
    b'{"a"\x0c:1}',
    b'\xc2\xa0{"a":1}',
    b'{"rt-":1}\n{"rt-":0}',
    b'{"s":"\x7f"}',
    b'{"s":["\x7f"]}',
]


def bits(array):
    """Values of a column that compare: dates and times as integers, floats bit by bit."""
    kind = array.type
    if pa.types.is_date(kind):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        array = array.view(pa.int64())
    elif pa.types.is_floating(kind):
        array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    return [repr(each) for each in array.to_pylist()]


def fields_of(schema):
    """The Arrow fields of a Spark schema, as a load has them."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return list(to_arrow_schema(StructType.fromDDL(schema), timezone="UTC"))


def compare(spark, payloads, schema, zone="UTC"):
    """Hold both against each other; return the payloads that differ, with what they gave."""
    import pyspark.sql.functions as f

    rows = list(enumerate(payloads))
    table = pa.table(
        {"place": [n for n, _ in rows], "p": pa.array([p for _, p in rows], pa.binary())}
    )
    frame = spark.createDataFrame(table)
    full = schema + ", _corrupt_record string"
    parsed = frame.select("place", f.from_json(f.expr("cast(p as string)"), full).alias("r"))
    expected = parsed.select("place", "r.*").orderBy("place").toArrow().combine_chunks()
    fields = fields_of(schema)
    decoder = JsonDecoder(fields, time_zone(zone))
    found = decoder.decode(pa.array(payloads, pa.binary()), first_only=False)
    corrupt = expected.column("_corrupt_record").is_valid().to_pylist()
    wrong = {}
    for place, is_bad in enumerate(corrupt):
        if is_bad != (place in set(found.bad)):
            wrong[payloads[place]] = ("corrupt", is_bad)
    for field, column in zip(fields, found.columns, strict=True):
        wanted = bits(expected.column(field.name).combine_chunks())
        for place, (one, other) in enumerate(zip(wanted, bits(column), strict=True)):
            if one != other:
                wrong[payloads[place]] = (field.name, one, other)
    assert len(found.reasons) == len(found.bad)
    assert all(found.reasons)
    return wrong


@pytest.mark.parametrize("schema", [SCHEMA, FLAT], ids=["all types", "flat"])
def test_edge_payloads_give_what_from_json_gives(spark, schema):
    """Where parsers differ: numbers in strings, duplicates, NaN, surrogates, text after the end."""
    assert compare(spark, EDGES, schema) == {}


@pytest.mark.parametrize("seed", range(4))
def test_random_json_gives_what_from_json_gives(spark, seed):
    """Objects of random values under the schema's names, whole and cut or with a byte changed."""
    random = Random(seed)
    payloads = [random_payload(random) for _ in range(4000)]
    for schema in (SCHEMA, FLAT):
        assert compare(spark, payloads, schema) == {}


def random_payload(random):
    """Return JSON that is mostly right; now and then some bytes of it are not."""
    data = json.dumps(
        {random.choice(NAMES): random_value(random, 3) for _ in range(random.randrange(6))},
        ensure_ascii=random.random() < 0.5,
    ).encode("utf-8", "surrogatepass")
    if random.random() < 0.3:
        place = random.randrange(len(data) + 1)
        noise = random.choice(
            [b"", b",", b"}", b"]", b'"', b" ", b"\n", b"1", b":", b"\xff", b"{", b"'"]
        )
        data = data[:place] + noise + data[place + random.randrange(3) :]
    return data


def random_value(random, depth):
    """Return a value of any kind, of those that columns of the schema have among them."""
    kind = random.randrange(14 if depth else 11)
    if kind < 3:
        return random.choice([0, 1, -1, 127, 200, 40000, 1 << 31, 1 << 62, 1 << 63, 1 << 80])
    if kind < 5:
        return random.choice([0.5, -0.0, 1e10, 1e-7, 3.14159, float("nan"), float("inf"), 0.1])
    if kind < 8:
        return random.choice(TEXTS)
    if kind < 11:
        return random.choice([None, True, False])
    if kind < 12:
        return [random_value(random, depth - 1) for _ in range(random.randrange(4))]
    return {
        random.choice(NAMES): random_value(random, depth - 1) for _ in range(random.randrange(4))
    }


def test_timestamps_without_a_zone_are_of_the_zone_given(spark):
    """The option timeZone replaces the session's setting, which a source never sees."""
    payloads = [p for p in EDGES if b'"ts"' in p]
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert compare(spark, payloads, "ts timestamp, a int", "America/New_York") == {}
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_a_whole_batch_takes_the_fast_way_around_one_bad_payload():
    """Only the neighbours of a payload that Arrow refuses are read one by one."""
    decoder = JsonDecoder(fields_of("a int, d date"), UTC)
    read = []
    plain = decoder._rows.read
    decoder._rows.read = lambda payload: read.append(payload) or plain(payload)
    payloads = [b'{"a":%d,"d":"2013-02-01"}' % n for n in range(5000)]
    payloads[700] = b'{"a":"x"}'
    found = decoder.decode(pa.array(payloads, pa.binary()), first_only=False)
    assert found.bad == [700]
    assert found.columns[0].to_pylist() == [None if n == 700 else n for n in range(5000)]
    assert 0 < len(read) < 50


@pytest.mark.parametrize("field", [
    "variant", "interval day to second", "map<int,string>", "array<variant>", "void", "char(3)",
    "struct<x:interval year>", "map<string,struct<x:variant>>", "varchar(5)",
])  # fmt: skip
def test_types_that_json_is_not_decoded_to_are_refused_at_planning(field):
    """A nested type counts as a whole: one part that works does not make the others work."""
    from pyspark.sql.types import StructType

    from rt.errors import Misuse
    from rt.spark.options import read_options
    from rt.spark.schema import check_schema

    options = read_options({"path": "/x", "decode": "json"})
    with pytest.raises(Misuse, match="field x"):
        check_schema(StructType.fromDDL(f"x {field}"), options)
    check_schema(StructType.fromDDL(SCHEMA), options)


def test_a_column_keeps_its_meaning_in_any_case_of_letters(tmp_path):
    """As in Spark; and a name that begins with an underscore is never a field of the payload."""
    from pyspark.sql.types import StructType

    from rt.errors import Misuse
    from rt.spark.options import read_options
    from rt.spark.schema import check_schema

    options = read_options({"path": "/x", "decode": "json"})
    found = check_schema(StructType.fromDDL("Position bigint, PAYLOAD binary, Alt int"), options)
    assert found.names == ["position", "payload", "Alt"]
    assert found.arrow.names == ["Position", "PAYLOAD", "Alt"]
    assert found.decoded == ("Alt",)
    with pytest.raises(Misuse, match="no column '_metadata'"):
        check_schema(StructType.fromDDL("_metadata string"), options)


def test_each_malformed_row_has_its_own_reason_and_record(spark, tmp_path):
    """A reason that belongs to another row sends its reader to the wrong payload."""
    from rt import Publisher

    payloads = [b'{"a":1}', b'{"a":"x","b":5}', b'{"b":6', b'{"b":"y","a":2}']
    with Publisher(str(tmp_path), stream="s", session="one") as publisher:
        publisher.publish_many(payloads)
    read = spark.read.format("rt").options(decode="json", mode="PERMISSIVE")
    schema = "number bigint, a int, b int, _corrupt string, _corrupt_record string"
    frame = read.schema(schema).load(str(tmp_path / "s" / "one"))
    rows = [tuple(row) for row in frame.orderBy("number").collect()]
    assert [row[1:3] for row in rows] == [(1, None), (None, 5), (None, None), (2, None)]
    assert [row[4] for row in rows] == [None, *[p.decode() for p in payloads[1:]]]
    assert rows[0][3] is None
    assert "a: 'x'" in rows[1][3]
    assert "ends" in rows[2][3]
    assert "b: 'y'" in rows[3][3]
