package network

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/watch"
)

// BenchmarkPacket sends datagrams of 64 bytes into a veth, whose other end drops them, and
// over loopback, which is not counted. The cases alternate 20 ms with the programs and 20 ms
// without, and report the median of the ratios, which a busy host disturbs less than the
// difference of two runs.
func BenchmarkPacket(b *testing.B) {
	for _, bc := range []struct{ name, address string }{{"counted", "10.250.0.9:9"}, {"loopback", "127.0.0.1:9"}} {
		b.Run(bc.name, func(b *testing.B) {
			w := newWorld(b)
			run(b, "ip link set lo up")
			run(b, "ip neigh add 10.250.0.9 lladdr 02:00:00:00:00:09 dev bn0")
			c, err := net.Dial("udp", bc.address)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			raw, err := c.(*net.UDPConn).File()
			if err != nil {
				b.Fatal(err)
			}
			defer raw.Close()
			fd := int(raw.Fd())
			var ratios, extra []float64
			for b.Loop() {
				without := pace(fd)
				traffic, err := OpenTraffic(w.tree, "/proc")
				if err != nil {
					b.Skip(err)
				}
				with := pace(fd)
				if err := traffic.Close(); err != nil {
					b.Fatal(err)
				}
				ratios, extra = append(ratios, with/without), append(extra, with-without)
			}
			b.ReportMetric(0, "ns/op") // of the whole pair
			b.ReportMetric(median(ratios), "with/without")
			b.ReportMetric(median(extra), "extra-ns/packet")
		})
	}
}

// pace is the time per packet in nanoseconds: the median of batches of 32 in 20 ms.
func pace(fd int) float64 {
	const batch = 32
	var packet [64]byte
	var times []float64
	for begin := time.Now(); time.Since(begin) < 20*time.Millisecond; {
		start := time.Now()
		for range batch {
			_, _ = unix.Write(fd, packet[:]) // refused over loopback, where nobody listens, each other time
		}
		times = append(times, float64(time.Since(start))/batch)
	}
	return median(times)
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// BenchmarkRead is a reading of each reader, of TCP with some connections of the group among
// those of the namespace.
func BenchmarkRead(b *testing.B) {
	w := newWorld(b)
	group := w.group(b, "bench")
	traffic := w.traffic(b)
	w.start(b, "", "serve 10.250.0.2:4000", true)
	w.start(b, group, "send 10.250.0.2:4000", false)
	for range 1000 {
		c, err := net.Dial("tcp", "10.250.0.2:4000")
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
	}
	tcp, err := OpenTCP(TCPConfig{Tree: w.tree, Group: group, Proc: "/proc"})
	if err != nil {
		b.Fatal(err)
	}
	links, err := OpenLinks("/sys/class/net", true)
	if err != nil {
		b.Fatal(err)
	}
	defer links.Close()
	for _, r := range []reader{traffic, tcp, links} {
		b.Run(strings.TrimPrefix(fmt.Sprintf("%T", r), "*network."), func(b *testing.B) {
			b.ReportAllocs()
			var samples []watch.Sample
			now := watch.Time(0)
			for b.Loop() {
				now += watch.Millisecond
				var err error
				if samples, err = r.Read(now, samples[:0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
