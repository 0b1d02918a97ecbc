package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fork"
	"berth.dev/berth/lab/stats"
)

// Wrk has wrk (github.com/wg/wrk) ask in place of the generator, a process for each server,
// in a closed loop: each connection asks again when it was answered, so a stall of the
// service holds back what would have shown it. wrk adds the requests that it reckons to
// have missed by that to its response times, and not to their number.
type Wrk struct {
	Program     string `json:"program"`     // its path
	Threads     int    `json:"threads"`     // of each process
	Connections int    `json:"connections"` // of each process
}

// wrkTimeout is from where on wrk does not record how long an answer took: it counts it as
// a timeout.
const wrkTimeout = 2 * time.Second

func (w Wrk) validate(c Config) error {
	switch {
	case w.Program == "":
		return errors.New("wrk: want its path")
	case w.Threads < 1 || w.Connections < w.Threads:
		return fmt.Errorf("wrk: %d threads, %d connections: want a connection for each thread", w.Threads, w.Connections)
	case c.Settle != 0 || c.Window%time.Second != 0:
		return fmt.Errorf("wrk: settle %s, window %s: it measures whole seconds, from its start", c.Settle, c.Window)
	case c.Protocol != "" && c.Protocol != "http":
		return fmt.Errorf("wrk: it speaks HTTP, not %s", c.Protocol)
	case len(c.Paths) > 0:
		return errors.New("wrk: it asks for one path")
	}
	return nil
}

// wrkScript is what wrk runs at its end (its SCRIPTING file): a line of sums, and one for
// each response time in µs and how often it was.
const wrkScript = `done = function(summary, latency, requests)
	local e = summary.errors
	print(string.format("berth %d %d %d %d %d", summary.requests, summary.duration, e.connect + e.read + e.write, e.status, e.timeout))
	for i = 1, #latency do
		local us, times = latency(i)
		print(string.format("berth-us %d %d", us, times))
	end
end
`

// wrked is what a process of wrk says.
type wrked struct {
	requests, failed, late int
	length                 time.Duration
	response               *hdrhistogram.Histogram // of requests and what wrk adds, in µs
}

// wrk runs it, and reports as the generator does. Its response times count from when a
// request was sent. Requests under way at its end are in no figure.
func (s *served) wrk(c Config) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("load config: %w", err)
	}
	if c.RawFile != "" { // no line for any request
		if err := os.WriteFile(c.RawFile, []byte(rawHeader), 0o600); err != nil {
			return fmt.Errorf("raw file: %w", err)
		}
	}
	script, err := inMemory(wrkScript)
	if err != nil {
		return fmt.Errorf("script of wrk: %w", err)
	}
	defer script.Close()
	runtime.GC()
	origin, err := s.begin()
	if err != nil {
		return err
	}
	time.Sleep(time.Duration(origin - newClock().now()))
	all, cpu, err := c.runWrk(script)
	if err != nil {
		return err
	}
	report, err := c.wrkReport(all)
	if err != nil {
		return err
	}
	report.WindowStart, report.WindowEnd = origin, origin+int64(c.Window)
	report.CPUSeconds = cpu.Seconds()
	s.running.Store(false)
	return s.say("report", report)
}

// inMemory is a file that ends with the processes that have it, however they end.
func inMemory(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("berth-wrk", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "berth-wrk")
	if _, err := f.WriteString(text); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// runWrk runs a process for each server at once, all of which end when this process does.
func (c Config) runWrk(script *os.File) (all []wrked, cpu time.Duration, err error) {
	w := c.Wrk
	runs := make([]*exec.Cmd, 0, len(c.addrs()))
	outs := make([]bytes.Buffer, len(c.addrs()))
	for i, addr := range c.addrs() {
		cmd := exec.Command(w.Program, "-t", strconv.Itoa(w.Threads), "-c", strconv.Itoa(w.Connections), "-d", fmt.Sprintf("%.0fs", c.Window.Seconds()),
			"--timeout", fmt.Sprintf("%.0fs", wrkTimeout.Seconds()), "-s", "/proc/self/fd/3", "http://"+addr+c.Path)
		cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &outs[i], os.Stderr, []*os.File{script}
		if err = fork.Start(cmd); err != nil {
			err = fmt.Errorf("wrk: %w", err)
			break
		}
		runs = append(runs, cmd)
	}
	for i, cmd := range runs {
		if wrong := cmd.Wait(); wrong != nil {
			err = errors.Join(err, fmt.Errorf("wrk: %w", wrong))
			continue
		}
		cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		one, wrong := parseWrk(outs[i].String())
		if wrong != nil {
			err = errors.Join(err, fmt.Errorf("wrk: %w", wrong))
		}
		all = append(all, one)
	}
	return all, cpu, err
}

// parseWrk reads what the script prints, among what wrk prints.
func parseWrk(text string) (w wrked, err error) {
	w.response = stats.NewHistogram()
	told := false
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] != "berth" && fields[0] != "berth-us" {
			continue
		}
		var n []int64
		for _, field := range fields[1:] {
			v, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return w, fmt.Errorf("%q: %w", lines.Text(), err)
			}
			n = append(n, v)
		}
		switch {
		case fields[0] == "berth" && len(n) == 5:
			told = true
			w.requests, w.length = int(n[0]), time.Duration(n[1])*time.Microsecond
			w.failed, w.late = int(n[2]+n[3]), int(n[4])
		case fields[0] == "berth-us" && len(n) == 2:
			if err := w.response.RecordValues(min(max(n[0], 0), stats.MaxLatency), n[1]); err != nil {
				return w, fmt.Errorf("%q: %w", lines.Text(), err)
			}
		default:
			return w, fmt.Errorf("%q: not what its script prints", lines.Text())
		}
	}
	if !told || w.length <= 0 {
		return w, fmt.Errorf("its script printed nothing: %.200q", text)
	}
	// A late answer is known as a lower bound.
	return w, w.response.RecordValues(wrkTimeout.Microseconds(), int64(w.late))
}

// wrkReport is what its processes say as a report. Those stop up to a tenth of a second
// after the window, so that their numbers are scaled to it.
func (c Config) wrkReport(all []wrked) (Report, error) {
	report := Report{Policy: "SCHED_OTHER", Servers: make([]int, len(all))}
	sum, none := stats.NewHistogram(), stats.NewHistogram()
	for i, w := range all {
		part := min(1, c.Window.Seconds()/w.length.Seconds())
		scaled := func(n int) int { return int(float64(n)*part + 0.5) }
		offered, censored := scaled(w.requests), scaled(w.failed+w.late)
		censored = min(censored, offered)
		text, err := stats.Encode(w.response)
		if err != nil {
			return report, err
		}
		one := Served{Offered: offered, Done: offered - censored, Censored: censored, DoneInWindow: offered - censored, Response: text}
		sum.Merge(w.response)
		report.Offered += one.Offered
		report.Done += one.Done
		report.Failed += one.Censored
		report.DoneInWindow += one.DoneInWindow
		report.Servers[i] = one.Offered
		if c.EachServer {
			report.Each = append(report.Each, one)
		}
		if w.failed+w.late > 0 {
			if report.Errors == nil {
				report.Errors = map[string]int{}
			}
			report.Errors["wrk: an error or a timeout"] += censored
		}
	}
	response, err := stats.Encode(sum)
	if err != nil {
		return report, err
	}
	empty, err := stats.Encode(none)
	report.Seconds = []Second{{Offered: report.Offered, Censored: report.Failed, Response: response, Service: response, Queue: empty, Lag: empty}}
	return report, err
}
