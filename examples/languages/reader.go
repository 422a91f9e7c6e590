// Prints the messages of an rt log: a session, or a merged log. docs/LOG_FORMAT.md is all it needs.
//
//	go run reader.go rt-data/stream/out
//
// A line is: position, number in the merged log, session, sequence number, time in ns, key, headers,
// payload; the last three in hexadecimal, "-" for nothing. A torn end is no error. Exit: 1 if the log is
// damaged, 2 if it cannot be read here: Go's library has no zstd. A last file is not searched for later
// frames that would prove that a damaged one was whole.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

const (
	header  = 64
	largest = 32 << 20
)

var little = binary.LittleEndian

// line is a line of the manifest.
type line struct {
	What, Kind, Name, File string
	End                    int
}

// log is what the manifest says, and the range that is being read.
type log struct {
	merged   bool
	session  string
	rolled   map[string]int
	archived map[string]bool
	next     uint64 // position in the session
	left     uint64 // bytes of the range
	skip     uint32
	number   uint64
	out      *bufio.Writer
}

func place(at uint64) string {
	return fmt.Sprintf("%d.%d.%d", at>>44, at>>30&16383, at&0x3fffffff)
}

func stop(code int, words string, of ...any) {
	fmt.Fprintf(os.Stderr, words+"\n", of...)
	panic(code)
}

func damaged(at uint64, words string) { stop(1, "%s: %s", place(at), words) }

func text(b []byte) string {
	if len(b) == 0 {
		return "-"
	}
	return hex.EncodeToString(b)
}

func open(directory string) *log {
	found := &log{rolled: map[string]int{}, archived: map[string]bool{}, out: bufio.NewWriter(os.Stdout)}
	data, err := os.ReadFile(filepath.Join(directory, "manifest"))
	if err != nil {
		stop(2, "%s has no manifest: it is not a log", directory)
	}
	lines := bytes.Split(data, []byte("\n"))
	for _, each := range lines[:len(lines)-1] { // what follows the last newline was not written
		var fields line
		if len(each) < 10 || fmt.Sprintf(" %08x", crc32.ChecksumIEEE(each[:len(each)-9])) != string(each[len(each)-9:]) ||
			json.Unmarshal(each[:len(each)-9], &fields) != nil {
			stop(1, "manifest: a line is damaged: %.40s", each)
		}
		switch fields.What {
		case "log":
			found.merged, found.session = fields.Kind == "merged", fields.Name
		case "rolled":
			found.rolled[fields.File] = fields.End
		case "archived":
			found.archived[fields.File] = true
		}
	}
	return found
}

// whole returns the bytes of the whole, intact frame that data begins with, or 0.
func whole(data []byte) int {
	if len(data) < header || string(data[:4]) != "RTF\x01" || crc32.ChecksumIEEE(data[8:header]) != little.Uint32(data[4:]) {
		return 0
	}
	messages, length, raw := int(little.Uint32(data[40:])), int(little.Uint32(data[44:])), int(little.Uint32(data[48:]))
	kind, codec, columns := data[56], data[57], data[58]
	if kind > 2 || codec > 1 || columns > 3 || data[59] != 0 || length > largest || raw > largest || (codec == 0 && raw != length) {
		return 0
	}
	size := header + length
	if kind == 0 && messages > size {
		size = messages
	}
	size = (size + 7) / 8 * 8
	if (kind == 0 && (messages == 0 || messages > raw/12)) || (kind == 2 && messages != 0) || size > len(data) ||
		crc32.ChecksumIEEE(data[header:header+length]) != little.Uint32(data[52:]) ||
		len(bytes.Trim(data[header+length:size], "\x00")) > 0 {
		return 0
	}
	return size
}

func headers(b []byte, at uint64) string {
	var found []string
	for len(b) > 0 {
		if len(b) < 3 || len(b) < 3+int(b[0])+int(little.Uint16(b[1:])) {
			damaged(at, "wrong headers")
		}
		value := 3 + int(b[0])
		end := value + int(little.Uint16(b[1:]))
		found = append(found, hex.EncodeToString(b[3:value])+"="+hex.EncodeToString(b[value:end]))
		b = b[end:]
	}
	if found == nil {
		return "-"
	}
	return strings.Join(found, ",")
}

// column is a column's offsets, nil if it is not there, and its bytes.
type column struct{ ends, data []byte }

func (c column) of(i int) []byte {
	if c.ends == nil {
		return nil
	}
	return c.data[little.Uint32(c.ends[4*i:]):little.Uint32(c.ends[4*i+4:])]
}

func (l *log) messages(h, body []byte, at uint64) {
	count, rest := int(little.Uint32(h[40:])), body[8*int(little.Uint32(h[40:])):]
	var columns [3]column // payloads, keys, headers
	for each := range columns {
		if each > 0 && int(h[58])&each == 0 {
			continue
		}
		if len(rest) < 4*(count+1) {
			damaged(at, "the columns do not fit")
		}
		for i := 0; i < count; i++ {
			if little.Uint32(rest) != 0 || little.Uint32(rest[4*i:]) > little.Uint32(rest[4*i+4:]) {
				damaged(at, "offsets decrease")
			}
		}
		columns[each].ends, rest = rest[:4*(count+1)], rest[4*(count+1):]
	}
	for each := range columns {
		if ends := columns[each].ends; ends != nil {
			length := little.Uint32(ends[4*count:])
			if uint64(length) > uint64(len(rest)) {
				damaged(at, "the columns do not add up to the body")
			}
			columns[each].data, rest = rest[:length], rest[length:]
		}
	}
	if len(rest) > 0 {
		damaged(at, "the columns do not add up to the body")
	}
	for i := 0; i < count; i++ {
		if l.skip > 0 { // a repeat
			l.skip--
			continue
		}
		number := "-"
		if l.merged {
			number = fmt.Sprint(l.number)
			l.number++
		}
		fmt.Fprintf(l.out, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", place(at+uint64(i)), number, l.session,
			little.Uint64(h[16:])+uint64(i), int64(little.Uint64(body[8*i:])),
			text(columns[1].of(i)), headers(columns[2].of(i), at), text(columns[0].of(i)))
	}
}

func (l *log) frame(data []byte, at uint64) {
	h, body := data[:header], data[header:header+int(little.Uint32(data[44:]))]
	if h[56] == 1 {
		if !l.merged || l.left > 0 || little.Uint64(h[8:]) != at || len(body) < 56 || int(little.Uint16(body[36:])) != len(body)-56 {
			damaged(at, "a range is where none can be")
		}
		l.session, l.next, l.left = string(body[56:]), little.Uint64(body[16:]), little.Uint64(body[24:])
		l.skip, l.number = little.Uint32(body[32:]), little.Uint64(h[16:])
		return
	}
	if crc32.ChecksumIEEE([]byte(l.session)) != little.Uint32(h[60:]) {
		damaged(at, "another session's")
	}
	wanted := at
	if l.merged {
		wanted = l.next
	}
	if little.Uint64(h[8:]) != wanted || (l.merged && uint64(len(data)) > l.left) {
		damaged(at, "not in its place")
	}
	if l.merged {
		l.next, l.left = l.next+uint64(len(data)), l.left-uint64(len(data))
	}
	if h[56] == 0 && h[57] == 1 {
		stop(2, "%s: is compressed, and Go's library has no zstd", place(at))
	}
	if h[56] == 0 {
		l.messages(h, body, at)
	}
}

func (l *log) read(directory string) {
	type file struct {
		name  string
		start uint64
	}
	var files []file
	names := map[string]bool{} // of those that the manifest knows too: they may be missing
	entries, _ := os.ReadDir(directory)
	for _, each := range entries {
		names[each.Name()] = true
	}
	for each := range l.rolled {
		names[each] = true
	}
	for each := range names {
		var run, roll uint64
		fmt.Sscanf(each, "log.%d.%d", &run, &roll)
		if each == fmt.Sprintf("log.%d.%d", run, roll) {
			files = append(files, file{each, run<<44 | roll<<30})
		}
	}
	sort.Slice(files, func(i, j int) bool { return files[i].start < files[j].start })
	for i, each := range files {
		if l.archived[each.name] {
			fmt.Fprintf(os.Stderr, "%s is archived\n", each.name)
			continue
		}
		data, err := os.ReadFile(filepath.Join(directory, each.name))
		end, isRolled := l.rolled[each.name]
		if err != nil || (isRolled && end > len(data)) {
			damaged(each.start, "the file is missing or shorter than its rolled line says")
		}
		if isRolled {
			data = data[:end]
		}
		at := 0
		for size := whole(data); size > 0; size = whole(data[at:]) {
			l.frame(data[at:at+size], each.start+uint64(at))
			at += size
		}
		if at < len(data) || (l.left > 0 && isRolled) { // torn, unless something says that it was written
			if isRolled || i+1 < len(files) {
				damaged(each.start+uint64(at), "is damaged")
			}
			return
		}
	}
}

func main() {
	code := 0
	defer func() { os.Exit(code) }()
	defer func() {
		if found := recover(); found != nil {
			code = found.(int)
		}
	}()
	if len(os.Args) != 2 {
		stop(2, "usage: go run reader.go DIRECTORY")
	}
	l := open(os.Args[1])
	defer l.out.Flush()
	l.read(os.Args[1])
}
