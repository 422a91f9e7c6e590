// Writes a session of rt, one message for each line of standard input. docs/LOG_FORMAT.md is all it needs.
//
//	go build -o writer writer.go
//	seq 1000 | ./writer rt-data stream counter      # then: rt push --root rt-data
//
// Each start begins a new run and goes on with the next sequence number. A line is on the disk when its
// number is printed. It rolls no file: after 1 GiB it asks to be started again.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"syscall"
	"time"
)

const header = 64

var little = binary.LittleEndian
var name = regexp.MustCompile(`^[a-z0-9]+([-._][a-z0-9]+)*$`)

func must(err error, doing string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot %s: %v\n", doing, err)
		os.Exit(1)
	}
}

func syncDirectory(path string) {
	directory, err := os.Open(path)
	must(err, "open "+path)
	must(directory.Sync(), "sync "+path)
	directory.Close()
}

func addLine(directory, text string) {
	file, err := os.OpenFile(filepath.Join(directory, "manifest"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	must(err, "open the manifest")
	_, err = fmt.Fprintf(file, "%s %08x\n", text, crc32.ChecksumIEEE([]byte(text)))
	must(err, "write the manifest")
	must(file.Sync(), "sync the manifest")
	file.Close()
}

// scan returns the end of the whole frames, the next sequence number, and the first and last time.
func scan(data []byte, next uint64) (int, uint64, [2]uint64) {
	at, times := 0, [2]uint64{}
	for rest := data; len(rest) >= header && string(rest[:4]) == "RTF\x01"; rest = data[at:] {
		length, messages := int(little.Uint32(rest[44:])), int(little.Uint32(rest[40:]))
		if crc32.ChecksumIEEE(rest[8:header]) != little.Uint32(rest[4:]) || header+length > len(rest) ||
			crc32.ChecksumIEEE(rest[header:header+length]) != little.Uint32(rest[52:]) {
			break
		}
		if at == 0 {
			times[0] = little.Uint64(rest[24:])
		}
		times[1], next = little.Uint64(rest[24:]), little.Uint64(rest[16:])+uint64(messages)
		size := header + length
		if messages > size {
			size = messages
		}
		at += (size + 7) / 8 * 8
	}
	return at, next, times
}

// readManifest cuts off a line that was only half written. It returns which files have ended, the
// sequence number after the last of them, and whether there is a whole line.
func readManifest(path string) (rolled map[string]bool, next uint64, isBegun bool) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, 0, false
	}
	must(err, "read the manifest")
	end := strings.LastIndex(string(data), "\n") + 1
	must(os.Truncate(path, int64(end)), "cut the manifest")
	rolled = map[string]bool{}
	for _, each := range strings.SplitAfter(string(data[:end]), "\n")[:strings.Count(string(data[:end]), "\n")] {
		var line struct {
			What, File string
			Next       uint64
		}
		text := strings.TrimRight(each, "\n")
		if len(text) > 9 {
			text = text[:len(text)-9]
		}
		if fmt.Sprintf("%s %08x\n", text, crc32.ChecksumIEEE([]byte(text))) != each || json.Unmarshal([]byte(text), &line) != nil {
			must(fmt.Errorf("a line is damaged: %.40s", each), "go on")
		}
		if line.What == "rolled" { // its file may be archived: only this line knows the numbers
			rolled[line.File], next = true, line.Next
		}
	}
	return rolled, next, end > 0
}

// recoverRuns ends the files of earlier runs; it returns a new run and the next sequence number.
func recoverRuns(directory string, rolled map[string]bool, next uint64) (uint64, uint64) {
	type file struct{ run, roll uint64 }
	var files []file
	entries, err := os.ReadDir(directory)
	must(err, "list the session")
	for _, each := range entries {
		var found file
		fmt.Sscanf(each.Name(), "log.%d.%d", &found.run, &found.roll)
		if each.Name() == fmt.Sprintf("log.%d.%d", found.run, found.roll) {
			files = append(files, found)
		}
	}
	sort.Slice(files, func(i, j int) bool {
		return files[i].run < files[j].run || (files[i].run == files[j].run && files[i].roll < files[j].roll)
	})
	run := uint64(0)
	for _, each := range files {
		run = each.run + 1
		name := fmt.Sprintf("log.%d.%d", each.run, each.roll)
		if rolled[name] {
			continue
		}
		path := filepath.Join(directory, name)
		data, err := os.ReadFile(path)
		must(err, "read "+name)
		end, after, times := scan(data, next)
		if end == 0 { // a file without a whole frame has never been
			must(os.Remove(path), "delete "+name)
			continue
		}
		old, err := os.Open(path)
		must(err, "open "+name)
		must(old.Sync(), "sync "+name) // a killed writer may have written more than it synced
		old.Close()
		addLine(directory, fmt.Sprintf(`{"rt":1,"what":"rolled","file":"%s","end":%d,"first":%d,"next":%d,"first_time_ns":%d,"last_time_ns":%d,"at_ns":%d}`,
			name, end, little.Uint64(data[16:]), after, times[0], times[1], time.Now().UnixNano()))
		next = after
	}
	return run, next
}

func frame(position, sequence, durable uint64, tag uint32, payload []byte) []byte {
	body := 8 + 2*4 + len(payload)
	data := make([]byte, (header+body+7)/8*8)
	copy(data, "RTF\x01")
	now := uint64(time.Now().UnixNano())
	little.PutUint64(data[8:], position)
	little.PutUint64(data[16:], sequence)
	little.PutUint64(data[24:], now)
	little.PutUint64(data[32:], durable)
	little.PutUint32(data[40:], 1)
	little.PutUint32(data[44:], uint32(body))
	little.PutUint32(data[48:], uint32(body))
	little.PutUint32(data[60:], tag)
	little.PutUint64(data[64:], now) // the time of the message
	little.PutUint32(data[76:], uint32(len(payload)))
	copy(data[80:], payload)
	little.PutUint32(data[52:], crc32.ChecksumIEEE(data[header:header+body]))
	little.PutUint32(data[4:], crc32.ChecksumIEEE(data[8:header]))
	return data
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: writer ROOT STREAM SESSION < lines")
		os.Exit(2)
	}
	stream, session := os.Args[2], os.Args[3]
	for _, each := range os.Args[2:] { // they become a part of a path, and of JSON
		if !name.MatchString(each) || len(each) > 63 {
			must(fmt.Errorf("it needs 1 to 63 of a-z and 0-9, with single - . _ inside"), fmt.Sprintf("use the name %q", each))
		}
	}
	directory := filepath.Join(os.Args[1], stream, session)
	must(os.MkdirAll(directory, 0o755), "make the session")
	lock, err := os.OpenFile(filepath.Join(directory, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	must(err, "open the lock")
	must(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), "take the lock, as a live writer has it")
	rolled, next, isBegun := readManifest(filepath.Join(directory, "manifest"))
	if !isBegun {
		id := make([]byte, 16)
		_, err := rand.Read(id)
		must(err, "get random numbers")
		addLine(directory, fmt.Sprintf(`{"rt":1,"what":"log","kind":"session","stream":"%s","name":"%s","id":"%x","created_ns":%d}`,
			stream, session, id, time.Now().UnixNano()))
		syncDirectory(directory)
		syncDirectory(filepath.Dir(directory))
	}
	run, next := recoverRuns(directory, rolled, next)
	var file *os.File
	offset, durable, tag := 0, uint64(0), crc32.ChecksumIEEE([]byte(session))
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if file == nil { // a file that has no message is never made
			file, err = os.OpenFile(filepath.Join(directory, fmt.Sprintf("log.%d.0", run)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
			must(err, "begin a file")
			syncDirectory(directory)
		}
		data := frame(run<<44|uint64(offset), next, durable, tag, lines.Bytes())
		if offset+len(data) > 1<<30-8 {
			must(fmt.Errorf("the file is full"), "write; start again")
		}
		_, err := file.Write(data)
		must(err, "write; nothing more is written")
		must(file.Sync(), "sync; nothing more is written")
		offset += len(data)
		durable = run<<44 | uint64(offset)
		fmt.Println(next)
		next++
	}
	must(lines.Err(), "read the lines")
}
