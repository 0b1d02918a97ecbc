package cgroupstat

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// inotifyEvent is one event as inotify(7) gives it.
type inotifyEvent struct {
	watch int
	mask  uint32
	name  string
}

// parseInotify reads what one read(2) gave: struct inotify_event with a name of
// len bytes each, filled up with zeroes.
func parseInotify(data []byte) ([]inotifyEvent, error) {
	var events []inotifyEvent
	for len(data) > 0 {
		if len(data) < unix.SizeofInotifyEvent {
			return nil, fmt.Errorf("inotify event: %d bytes", len(data))
		}
		watch := int32(binary.NativeEndian.Uint32(data))
		mask := binary.NativeEndian.Uint32(data[4:])
		length := binary.NativeEndian.Uint32(data[12:])
		data = data[unix.SizeofInotifyEvent:]
		if uint64(length) > uint64(len(data)) {
			return nil, fmt.Errorf("inotify event: name of %d bytes in %d", length, len(data))
		}
		name, _, _ := bytes.Cut(data[:length], []byte{0})
		events = append(events, inotifyEvent{int(watch), mask, string(name)})
		data = data[length:]
	}
	return events, nil
}
