"""A gateway, its clients and its cluster's leader are killed: each append is there once."""

import json
import random
import threading
import time

import pytest

from tests.gateway_site import WHOLE_S, Site
from tests.replicator_host import eventually

WRITERS, APPENDS, PARTS = 3, 120, 3


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(2))
def test_appends_that_are_repeated_until_they_are_answered_are_there_once(tmp_path, seed):
    """Kill -9 of the gateway and of nodes; a client that was cut off says the same again."""
    chance, site = random.Random(seed), Site(tmp_path)
    with site.children:
        json_type = {"Content_Type": "application/json"}
        site.ask_until({200, 201}, "PUT", "work", **json_type)
        done = []

        def write(name):
            for number in range(APPENDS):
                body = json.dumps([f"{name} {number} {part}" for part in range(PARTS)])
                site.ask_until(
                    {200, 204}, "POST", "work", body, **json_type, Producer_Id=name,
                    Producer_Epoch="0", Producer_Seq=str(number),
                )  # fmt: skip
            done.append(name)

        writers = [threading.Thread(target=write, args=[f"w{n}"]) for n in range(WRITERS)]
        for each in writers:
            each.start()
        kills = 0
        while any(each.is_alive() for each in writers) and kills < 12:
            time.sleep(chance.uniform(0.3, 1.5))
            if chance.random() < 0.6:
                site.kill_gateway()
            else:
                site.kill_node(chance.choice(site.places).name)
            kills += 1
        for each in writers:
            each.join(WHOLE_S)
        assert len(done) == WRITERS
        assert eventually(lambda: len(site.read("work")) >= WRITERS * APPENDS * PARTS, 60)
        found = site.read("work")
        assert kills >= 2
        for writer in range(WRITERS):
            mine = [each for each in found if each.startswith(f"w{writer} ")]
            assert mine == [
                f"w{writer} {number} {part}" for number in range(APPENDS) for part in range(PARTS)
            ]
