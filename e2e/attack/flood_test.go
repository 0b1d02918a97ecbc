package attack

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// squat listens on an address until it is killed.
var squat = newTrick("squat", func(args []string) error {
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	fmt.Println("squatting")
	for {
		if _, err := l.Accept(); err != nil {
			return err
		}
	}
})

// flood opens connections to an address or a socket and keeps those that stay open, after
// sending a text on each, for ever again if that is "again".
var flood = newTrick("flood", func(args []string) error {
	at, text, again := args[0], args[2], args[3] == "again"
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	network := "tcp"
	if strings.HasPrefix(at, "/") {
		network = "unix"
	}
	var kept []net.Conn
	for range n {
		c, err := net.Dial(network, at)
		if err != nil {
			return err
		}
		_, _ = io.WriteString(c, text)
		kept = append(kept, c)
	}
	fmt.Println("flooding")
	for again {
		for i, c := range kept {
			c.SetDeadline(time.Now().Add(time.Second))
			_, err := io.WriteString(c, text)
			if err == nil {
				_, err = c.Read(make([]byte, 1<<20))
			}
			if err == nil {
				continue
			}
			c.Close()
			if kept[i], err = net.Dial(network, at); err != nil {
				return err
			}
		}
	}
	time.Sleep(time.Hour)
	return nil
})

// TestPortOfAStranger has a stranger listen on the port of the status page before the
// agent starts.
func TestPortOfAStranger(t *testing.T) {
	boxed(t, func(b *box) {
		theirs := b.start(stranger, squat.with(pageTCP)...)
		theirs.awaitText("squatting")
		agent := b.agent("")
		agent.awaitText("the status page is not served at http://127.0.0.1:9750")
		b.must(berth, "run", "--", "true")
		if status, _, text, err := browse(pageSocket, "GET", "http://localhost/status.json", ""); err != nil || !strings.Contains(text, "address already in use") {
			b.Errorf("the page does not say it: %d %.300s, %v", status, text, err)
		}
		theirs.kill()
		agent.awaitText("msg=opened")
		if status, _, _, err := browse(pageTCP, "GET", "http://localhost:9750/", ""); err != nil || status != 200 {
			b.Errorf("once the port is free: %d, %v", status, err)
		}
		agent.end(syscall.SIGTERM)
	})
}

// TestConnectionsOfAStranger has a stranger, who is in agent.group at that, open thousands
// of connections to each door of the agent: idle ones, ones that begin a request, and ones
// that ask for the status without end. The agent's descriptors and memory stay bounded,
// and nobody waits.
func TestConnectionsOfAStranger(t *testing.T) {
	boxed(t, func(b *box) {
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Max < 6000 {
			b.Skipf("needs 6000 descriptors for the attacker: %d, %v", limit.Max, err)
		}
		if err := os.Mkdir("/run/berth", 0o755); err != nil {
			b.Fatal(err)
		}
		agent := b.agent("agent: {group: \"65534\"}\n")
		b.must(berth, "run", "--", "true")
		pid := agent.Process.Pid
		before, rss := descriptors(b, pid), resident(b, pid)
		ask := "GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
		for _, attack := range [][]string{
			flood.with(pageTCP, "5000", "", ""),
			flood.with(pageTCP, "1000", "GET / HT", ""), // and no more
			flood.with(pageSocket, "1000", "", ""),
			flood.with(apiSocket, "5000", "", ""),
			flood.with(apiSocket, "1000", "GET /v1/events HTTP/1.1\r\nHost: agent\r\n\r\n", ""),
			flood.with(pageTCP, "200", ask, "again"),
		} {
			theirs := b.start(stranger, attack...)
			theirs.awaitText("flooding")
			start := time.Now()
			b.ps()
			b.must(berth, "run", "--class", "BE", "--", "true")
			status, _, _, err := browse(pageTCP, "GET", "http://localhost:9750/metrics", "")
			refused := 0
			for ; time.Since(start) < time.Minute && (err != nil || status != 200); refused++ { // 503 while others scrape
				status, _, _, err = browse(pageTCP, "GET", "http://localhost:9750/metrics", "")
			}
			took := time.Since(start)
			now, nowRSS := descriptors(b, pid), resident(b, pid)
			b.Logf("%q: %v, %d scrapes refused, descriptors %d -> %d, resident %d -> %d MiB", attack[2:], took, refused, before, now, rss>>20, nowRSS>>20)
			if err != nil || status != 200 {
				b.Errorf("%q: metrics: %d, %v", attack[2:], status, err)
			}
			if took > time.Minute {
				b.Errorf("%q: ps, run and a scrape took %v", attack[2:], took)
			}
			if now > before+300 {
				b.Errorf("%q: the agent has %d descriptors, %d before", attack[2:], now, before)
			}
			if nowRSS > rss+40<<20 {
				b.Errorf("%q: the agent has %d bytes resident, %d before", attack[2:], nowRSS, rss)
			}
			theirs.kill()
		}
		agent.end(syscall.SIGTERM)
	})
}

func descriptors(b *box, pid int) int {
	b.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		b.Fatal(err)
	}
	return len(entries)
}

// resident is the memory of a process, in bytes.
func resident(b *box, pid int) int {
	b.Helper()
	for line := range strings.Lines(b.read(fmt.Sprintf("/proc/%d/status", pid))) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "VmRSS:" {
			n, err := strconv.Atoi(words[1])
			if err != nil {
				b.Fatal(err)
			}
			return n << 10
		}
	}
	b.Fatalf("no VmRSS of process %d", pid)
	return 0
}
