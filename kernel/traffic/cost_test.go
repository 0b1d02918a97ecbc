package traffic

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"berth.dev/berth/internal/testbox"
)

// datagrams says how many nanoseconds one took, each time that it is told how many to send.
func datagrams(group string) {
	must(testbox.Join(group))
	c, err := ends().Dial("udp", port)
	must(err)
	fmt.Println("ready")
	b := make([]byte, packetBytes)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		n, err := strconv.Atoi(in.Text())
		must(err)
		start := time.Now()
		for range n {
			_, err := c.Write(b)
			must(err)
		}
		fmt.Println(time.Since(start).Nanoseconds() / int64(n))
	}
}

// costEnv has TestPacketCost measure: docs/measurements/net-cost.md.
const costEnv = "BERTH_TEST_COST"

// TestPacketCost measures what each mechanism adds to a datagram that is sent over a link of the
// test's own, where nothing waits.
func TestPacketCost(t *testing.T) {
	if os.Getenv(costEnv) == "" {
		t.Skip(costEnv + " is not set")
	}
	inNamespace(t, testPacketCost)
}

func testPacketCost(t *testing.T) {
	const rounds, each = 40, 20_000
	const unreached = 1e12 // bytes per second
	b := newBed(t, false)
	calls := systemCalls{}
	veth0, err := net.InterfaceByName(nearDevice)
	if err != nil {
		t.Fatal(err)
	}
	group, class := b.groups[0], Class{Rate: noFloor, Ceil: unreached, Prio: 3}
	divide := func(by Mechanism) error {
		return errors.Join(calls.SetMark(group, firstMinor), calls.Divide(by, veth0.Index),
			calls.SetClass(by, veth0.Index, linkMinor, Class{Rate: unreached, Ceil: unreached}), calls.SetClass(by, veth0.Index, firstMinor, class))
	}
	join := func(by Mechanism) error { return errors.Join(calls.Join(by, veth0.Index), calls.SetMark(group, 0)) }
	nothing := func() error { return nil }
	ways := []struct {
		name     string
		set, end func() error
		took     []float64 // nanoseconds of a datagram, by round
	}{
		{"nothing", nothing, nothing, nil},
		{"nothing, again", nothing, nothing, nil},
		{"mark", func() error { return calls.SetMark(group, firstMinor) }, func() error { return calls.SetMark(group, 0) }, nil},
		{"send limit", func() error { return calls.SetLimit(group, Limit{Send: mostRate}) }, func() error { return calls.SetLimit(group, Limit{}) }, nil},
		{"mark and edt", func() error { return divide(EDT) }, func() error { return join(EDT) }, nil},
		{"mark and htb", func() error { return divide(HTB) }, func() error { return join(HTB) }, nil},
	}
	sender := testbox.Self(t, roleEnv, gramRole+" "+group, 0)
	in, err := sender.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said := testbox.Start(t, sender)
	for round := range rounds {
		for i := range ways {
			w := &ways[(round+i)%len(ways)]
			if err := w.set(); err != nil {
				t.Fatalf("%s: %v", w.name, err)
			}
			if _, err := fmt.Fprintln(in, each); err != nil || !said.Scan() {
				t.Fatal("the sender ended: ", err)
			}
			took, err := strconv.ParseFloat(said.Text(), 64)
			if err := errors.Join(err, w.end()); err != nil {
				t.Fatalf("%s: %v", w.name, err)
			}
			w.took = append(w.took, took)
		}
	}
	middle := func(of []float64) (low, median, high float64) {
		of = slices.Sorted(slices.Values(of))
		return of[len(of)/4], of[len(of)/2], of[len(of)*3/4]
	}
	t.Logf("%d rounds of %d datagrams of %d bytes", rounds, each, packetBytes)
	for _, w := range ways {
		var ratios, more []float64
		for i, took := range w.took {
			ratios, more = append(ratios, took/ways[0].took[i]), append(more, took-ways[0].took[i])
		}
		_, ns, _ := middle(w.took)
		low, ratio, high := middle(ratios)
		_, added, _ := middle(more)
		t.Logf("%-14s %6.0f ns a datagram, %+5.0f ns, %.3f times nothing (quartiles %.3f to %.3f)", w.name, ns, added, ratio, low, high)
	}
}
