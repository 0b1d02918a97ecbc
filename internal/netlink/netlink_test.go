package netlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// message is one that answers a request.
func message(seq uint32, kind, flags uint16, body []byte) []byte {
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, flags)
	m = binary.NativeEndian.AppendUint32(m, seq)
	m = binary.NativeEndian.AppendUint32(m, 0)
	return append(m, body...)
}

func code(of unix.Errno) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-int32(of))) }

// datagram is messages of one kind each.
func datagram(seq uint32, kinds ...uint16) (all []byte) {
	for _, kind := range kinds {
		all = append(all, message(seq, kind, 0, make([]byte, 4))...)
	}
	return all
}

func TestMessages(t *testing.T) {
	t.Parallel()
	short := datagram(1, 20)
	binary.NativeEndian.PutUint32(short, 8)
	request := message(1, unix.RTM_NEWQDISC, 0, make([]byte, 22))
	padded := append(slices.Clone(request), 0, 0)
	text := Attribute(nil, 1, []byte("Exclusivity flag on, cannot modify\x00"))
	const told = "file exists: Exclusivity flag on, cannot modify"
	for name, c := range map[string]struct {
		data  []byte
		calls int
		done  bool
		fails string
	}{
		"two, and more to come": {datagram(1, 20, 20), 2, false, ""},
		"the last":              {datagram(1, 20, unix.NLMSG_DONE, 20), 1, true, ""},
		"the last, which fails": {slices.Concat(datagram(1, 20), message(1, unix.NLMSG_DONE, 0, code(unix.EOPNOTSUPP))), 1, true, "not supported"},
		"of another request":    {datagram(2, 20, unix.NLMSG_DONE), 0, false, ""},
		"nothing to do":         {datagram(1, unix.NLMSG_NOOP), 0, false, ""},
		"less than a header":    {datagram(1, 20)[:10], 0, false, ""},
		"longer than what came": {datagram(1, 20)[:18], 0, false, "20 bytes in 18"},
		"shorter than a header": {short, 0, false, "8 bytes in 20"},
		"refused":               {message(1, unix.NLMSG_ERROR, 0, slices.Concat(code(unix.EINVAL), request)), 0, true, "invalid argument"},
		"with a reason":         {message(1, unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, slices.Concat(code(unix.EEXIST), padded, text)), 0, true, told},
		"and without its request": {
			message(1, unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS|unix.NLM_F_CAPPED, slices.Concat(code(unix.EEXIST), request[:unix.NLMSG_HDRLEN], text)), 0, true, told,
		},
		"acknowledged":   {message(1, unix.NLMSG_ERROR, 0, append(code(0), request[:unix.NLMSG_HDRLEN]...)), 0, true, ""},
		"half an answer": {message(1, unix.NLMSG_ERROR, 0, code(0)), 0, true, "half an answer"},
	} {
		calls := 0
		done, err := messages(c.data, 1, func([]byte) error { calls++; return nil })
		if calls != c.calls || done != c.done || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %d calls, %v, %v, want %+v", name, calls, done, err, c)
		}
	}
	refuse := errors.New("no")
	if _, err := messages(datagram(1, 20), 1, func([]byte) error { return refuse }); !errors.Is(err, refuse) {
		t.Error(err)
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(datagram(1, 20, unix.NLMSG_DONE))
	f.Add(message(1, unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, make([]byte, 40)))
	f.Add(message(1, unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, slices.Concat(code(unix.EPERM), make([]byte, 16), Attribute(nil, 1, []byte("no")))))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = messages(data, 1, func(payload []byte) error {
			if len(payload) > len(data)-unix.NLMSG_HDRLEN {
				t.Errorf("%d bytes of %d", len(payload), len(data))
			}
			_ = Attributes(payload, func(uint16, []byte) {})
			return nil
		})
	})
}

func TestAttributes(t *testing.T) {
	t.Parallel()
	whole := Attribute(Attribute(nil, 1|unix.NLA_F_NESTED, []byte("abcde")), 2, nil)
	for name, c := range map[string]struct {
		data  []byte
		fails string
	}{
		"whole":   {whole, ""},
		"and cut": {append(slices.Clone(whole), 1, 0), "half an attribute"},
		"small":   {append(slices.Clone(whole), 3, 0, 0, 0), "an attribute of 3 bytes in 4"},
		"long":    {append(slices.Clone(whole), 5, 0, 0, 0), "an attribute of 5 bytes in 4"},
	} {
		var kinds []uint16
		var values []byte
		err := Attributes(c.data, func(kind uint16, value []byte) { kinds, values = append(kinds, kind), append(values, value...) })
		if !slices.Equal(kinds, []uint16{1, 2}) || !bytes.Equal(values, []byte("abcde")) || (err == nil) != (c.fails == "") || err != nil && err.Error() != c.fails {
			t.Errorf("%s: %v, %q, %v, want %q", name, kinds, values, err, c.fails)
		}
	}
}

// TestKernel asks the running kernel for its links, for one that is not there, and for what it
// does not answer.
func TestKernel(t *testing.T) {
	t.Parallel()
	c, err := Open(unix.NETLINK_ROUTE)
	if err != nil {
		t.Skip(err)
	}
	defer c.Close()
	if err := c.Dump(unix.NLMSG_NOOP, nil, nil); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("without an answer: %v", err)
	}
	absent := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(absent[4:], 1<<30) // ifi_index
	if err := c.Request(unix.RTM_GETLINK, 0, absent); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a link that is not there: %v", err)
	}
	links := 0
	if err := c.Dump(unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg), func([]byte) error { links++; return nil }); err != nil || links == 0 {
		t.Errorf("%d links, %v", links, err)
	}
}
