package traffic

import (
	"bytes"
	"testing"

	"berth.dev/berth/internal/netlink"
)

// The message names both ends, and the other one's namespace.
func TestPairMessage(t *testing.T) {
	t.Parallel()
	find := func(b []byte, want uint16) (found []byte) {
		if err := netlink.Attributes(b, func(kind uint16, value []byte) {
			if kind == want {
				found = value
			}
		}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	b := pairMessage("near", "far", 7)[sizeOfIfInfo:]
	info := find(b, iflaLinkInfo)
	peer := find(find(info, infoData), vethPeer)
	if len(peer) < sizeOfIfInfo {
		t.Fatalf("a peer of %d bytes", len(peer))
	}
	peer = peer[sizeOfIfInfo:]
	for _, tc := range []struct {
		what      string
		got, want []byte
	}{
		{"name", find(b, iflaName), []byte("near\x00")}, {"kind", find(info, infoKind), []byte("veth\x00")},
		{"name of the other end", find(peer, iflaName), []byte("far\x00")}, {"namespace", find(peer, iflaNetNSFD), order.AppendUint32(nil, 7)},
	} {
		if !bytes.Equal(tc.got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.what, tc.got, tc.want)
		}
	}
}
