import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.*;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.zip.CRC32;

/**
 * Prints the messages of an rt log: a session, or a merged log. docs/LOG_FORMAT.md is all it needs.
 *
 * <pre>java Reader.java rt-data/stream/out</pre>
 *
 * A line is: position, number in the merged log, session, sequence number, time in ns, key, headers,
 * payload; the last three in hexadecimal, "-" for nothing. A torn end is no error. Exit: 1 if the log is
 * damaged, 2 if it cannot be read here: the JDK has no zstd. A last file is not searched for later frames
 * that would prove that a damaged one was whole.
 */
public class Reader {
    static final int HEADER = 64, LARGEST = 32 << 20;
    static final Pattern NAME = Pattern.compile("log\\.(0|[1-9]\\d*)\\.(0|[1-9]\\d*)");
    static final StringBuilder out = new StringBuilder();

    boolean isMerged;
    String session = ""; // of the session log, or of the range that is being read
    long left, next, skip, number; // of that range: bytes, position, repeats, next number
    final Map<String, Long> rolled = new HashMap<>();
    final Set<String> archived = new HashSet<>();

    static class Stop extends RuntimeException {
        final int code;

        Stop(int code, String words) {
            super(words);
            this.code = code;
        }
    }

    static Stop damaged(long at, String words) {
        return new Stop(1, place(at) + ": " + words);
    }

    static String place(long at) {
        return (at >>> 44) + "." + (at >>> 30 & 16383) + "." + (at & 0x3fffffff);
    }

    static long crc(ByteBuffer bytes) {
        CRC32 crc = new CRC32();
        crc.update(bytes);
        return crc.getValue();
    }

    static ByteBuffer part(ByteBuffer of, long from, long length) {
        return of.slice((int) from, (int) length).order(ByteOrder.LITTLE_ENDIAN);
    }

    static long u32(ByteBuffer of, int at) {
        return of.getInt(at) & 0xffffffffL;
    }

    static String text(ByteBuffer bytes) {
        byte[] found = new byte[bytes.remaining()];
        bytes.get(bytes.position(), found);
        return HexFormat.of().formatHex(found);
    }

    static String field(String line, String name) {
        Matcher found = Pattern.compile("\"" + name + "\":\"?([^\",}]*)").matcher(line);
        return found.find() ? found.group(1) : "";
    }

    void manifest(Path directory) throws IOException {
        byte[] data;
        try {
            data = Files.readAllBytes(directory.resolve("manifest"));
        } catch (NoSuchFileException error) {
            throw new Stop(2, directory + " has no manifest: it is not a log");
        }
        String all = new String(data, StandardCharsets.ISO_8859_1);
        for (int begin = 0, end; (end = all.indexOf('\n', begin)) >= 0; begin = end + 1) {
            String line = all.substring(begin, end); // what follows the last newline was not written
            byte[] bytes = line.substring(0, Math.max(0, line.length() - 9)).getBytes(StandardCharsets.ISO_8859_1);
            if (line.length() < 10 || !line.endsWith(String.format(" %08x", crc(ByteBuffer.wrap(bytes)))))
                throw new Stop(1, "manifest: a line is damaged: " + line);
            switch (field(line, "what")) {
                case "log" -> {
                    isMerged = field(line, "kind").equals("merged");
                    session = field(line, "name");
                }
                case "rolled" -> rolled.put(field(line, "file"), Long.parseLong(field(line, "end")));
                case "archived" -> archived.add(field(line, "file"));
            }
        }
    }

    /** Returns the bytes of the whole, intact frame that begins at an offset, or 0. */
    static long whole(ByteBuffer data, int at, long end) {
        if (at + HEADER > end || data.getInt(at) != 0x01465452) return 0;
        if (crc(part(data, at + 8, 56)) != u32(data, at + 4)) return 0;
        long messages = u32(data, at + 40), length = u32(data, at + 44), raw = u32(data, at + 48);
        int kind = data.get(at + 56), codec = data.get(at + 57), columns = data.get(at + 58);
        if (kind < 0 || kind > 2 || codec < 0 || codec > 1 || columns < 0 || columns > 3) return 0;
        if (data.get(at + 59) != 0 || length > LARGEST || raw > LARGEST || (codec == 0 && raw != length)) return 0;
        if (kind == 0 ? messages == 0 || messages > raw / 12 : kind == 2 && messages != 0) return 0;
        long size = (Math.max(HEADER + length, kind == 0 ? messages : 0) + 7) / 8 * 8;
        if (at + size > end || crc(part(data, at + HEADER, length)) != u32(data, at + 52)) return 0;
        for (long i = at + HEADER + length; i < at + size; i++) if (data.get((int) i) != 0) return 0;
        return size;
    }

    /** The offsets of a column, which may not be there, and its bytes. */
    record Column(long[] ends, long begin) {
        ByteBuffer of(ByteBuffer body, int i) {
            return this.ends == null ? ByteBuffer.allocate(0) : part(body, begin + ends[i], ends[i + 1] - ends[i]);
        }
    }

    static String headers(ByteBuffer bytes, long at) {
        List<String> found = new ArrayList<>();
        for (int i = 0; i < bytes.limit(); ) {
            int name = bytes.get(i) & 255, value = i + 3 > bytes.limit() ? 0 : bytes.getShort(i + 1) & 65535;
            if (i + 3 + name + value > bytes.limit()) throw damaged(at, "wrong headers");
            found.add(text(part(bytes, i + 3, name)) + "=" + text(part(bytes, i + 3 + name, value)));
            i += 3 + name + value;
        }
        return found.isEmpty() ? "-" : String.join(",", found);
    }

    void messages(ByteBuffer header, ByteBuffer body, long at) {
        int count = (int) u32(header, 40), columns = header.get(58);
        long after = 8L * count;
        long[][] ends = new long[3][];
        for (int each = 0; each < 3; each++) {
            if (each > 0 && (columns & each) == 0) continue;
            if (after + 4L * (count + 1) > body.limit()) throw damaged(at, "the columns do not fit");
            ends[each] = new long[count + 1];
            for (int i = 0; i <= count; i++) {
                ends[each][i] = u32(body, (int) after + 4 * i);
                if (i == 0 ? ends[each][0] != 0 : ends[each][i] < ends[each][i - 1])
                    throw damaged(at, "offsets decrease");
            }
            after += 4L * (count + 1);
        }
        Column[] all = new Column[3];
        for (int each = 0; each < 3; each++) {
            all[each] = new Column(ends[each], after);
            after += ends[each] == null ? 0 : ends[each][count];
        }
        if (after != body.limit()) throw damaged(at, "the columns do not add up to the body");
        for (int i = 0; i < count; i++) {
            if (skip > 0) { // a repeat
                skip--;
                continue;
            }
            String key = text(all[1].of(body, i)), payload = text(all[0].of(body, i));
            out.append(String.join("\t", place(at + i), isMerged ? "" + number++ : "-", session,
                "" + (header.getLong(16) + i), "" + body.getLong(8 * i), key.isEmpty() ? "-" : key,
                headers(all[2].of(body, i), at), payload.isEmpty() ? "-" : payload)).append('\n');
        }
    }

    void frame(ByteBuffer data, int offset, long size, long at) {
        ByteBuffer header = part(data, offset, HEADER), body = part(data, offset + HEADER, u32(header, 44));
        if (header.get(56) == 1) {
            if (!isMerged || left > 0 || header.getLong(8) != at || body.limit() < 56
                || (body.getShort(36) & 65535) != body.limit() - 56) throw damaged(at, "a range is where none can be");
            session = StandardCharsets.ISO_8859_1.decode(part(body, 56, body.limit() - 56)).toString();
            next = body.getLong(16);
            left = body.getLong(24);
            skip = u32(body, 32);
            number = header.getLong(16);
            return;
        }
        if (crc(StandardCharsets.ISO_8859_1.encode(session)) != u32(header, 60)) throw damaged(at, "another session's");
        if (header.getLong(8) != (isMerged ? next : at) || (isMerged && size > left)) throw damaged(at, "not in its place");
        if (isMerged) {
            next += size;
            left -= size;
        }
        if (header.get(56) == 2) return;
        if (header.get(57) != 0) throw new Stop(2, place(at) + ": is compressed, and the JDK has no zstd");
        messages(header, body, at);
    }

    void read(Path directory) throws IOException {
        manifest(directory);
        TreeMap<Long, String> files = new TreeMap<>();
        Set<String> names = new HashSet<>(rolled.keySet()); // what the manifest knows may be missing
        try (var listed = Files.newDirectoryStream(directory)) {
            for (Path each : listed) names.add(each.getFileName().toString());
        }
        for (String each : names) {
            Matcher name = NAME.matcher(each);
            if (name.matches())
                files.put(Long.parseLong(name.group(1)) << 44 | Long.parseLong(name.group(2)) << 30, name.group());
        }
        for (var file : files.entrySet()) {
            String name = file.getValue();
            if (archived.contains(name)) {
                System.err.println(name + " is archived");
                continue;
            }
            Path path = directory.resolve(name);
            byte[] bytes = Files.exists(path) ? Files.readAllBytes(path) : new byte[0];
            ByteBuffer data = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
            long start = file.getKey(), end = rolled.getOrDefault(name, (long) data.limit()), size;
            if (end > data.limit()) throw damaged(start, "the file is missing or shorter than its rolled line says");
            int at = 0;
            for (; at < end && (size = whole(data, at, end)) > 0; at += size) frame(data, at, size, start + at);
            if (at < end || (left > 0 && rolled.containsKey(name))) { // torn, unless something says it was written
                if (rolled.containsKey(name) || start != files.lastKey()) throw damaged(start + at, "is damaged");
                return;
            }
        }
    }

    public static void main(String[] arguments) throws IOException {
        int code = 0;
        try {
            if (arguments.length != 1) throw new Stop(2, "usage: java Reader.java DIRECTORY");
            new Reader().read(Path.of(arguments[0]));
        } catch (Stop stop) {
            code = stop.code;
            System.err.println(stop.getMessage());
        }
        System.out.print(out);
        System.out.flush();
        System.exit(code);
    }
}
