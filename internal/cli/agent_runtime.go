package cli

import (
	"bufio"
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// startupTime is from an agent's start to when everything has been placed and read once.
const startupTime = 30 * time.Second

// TuneRuntime fits the Go runtime to an agent: it lives long, does one thing after the other,
// and runs on CPUs that are for workloads. garbage is how much it may have of what it uses, in
// percent: less costs time where it allocates much; cpus is on how many CPUs at a time it runs.
// What the environment sets (GOGC, GOMAXPROCS) holds instead. The function that it returns ends what it
// has begun.
func TuneRuntime(garbage, cpus int) (end func() bool) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(cpus)
	}
	slackTimers(time.Millisecond)
	return time.AfterFunc(startupTime, freeStartup).Stop
}

// slackTimers lets the kernel wake the threads of this process that much later than they
// ask for (timer slack, prctl(2)). While the agent reads, the thread by which the Go runtime
// watches the others would sleep for 20 µs, again and again.
func slackTimers(by time.Duration) {
	threads, _ := os.ReadDir("/proc/self/task") // those that come later inherit it
	for _, t := range threads {
		_ = os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", strconv.AppendInt(nil, by.Nanoseconds(), 10), 0)
	}
}

// freeStartup gives back the memory that only the start of this process needed: heap,
// and pages of the program's file, which the kernel maps again where they are used.
func freeStartup() {
	debug.FreeOSMemory()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	for _, m := range unmodified(text, program) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
	}
}

// mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// unmodified returns the mappings of a file that are as the file is, and stay so, by the
// text of smaps (proc_pid_smaps(5)). A relocated one is not: it has anonymous pages.
func unmodified(smaps []byte, file string) (all []mapping) {
	var m mapping
	ours := false
	for lines := bufio.NewScanner(bytes.NewReader(smaps)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 5 && !strings.HasSuffix(fields[0], ":"):
			from, to, _ := strings.Cut(fields[0], "-")
			start, err1 := strconv.ParseUint(from, 16, 64)
			end, err2 := strconv.ParseUint(to, 16, 64)
			m = mapping{uintptr(start), uintptr(end)}
			ours = err1 == nil && err2 == nil && !strings.Contains(fields[1], "w") && strings.HasSuffix(lines.Text(), " "+file)
		case ours && len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0":
			all = append(all, m)
		}
	}
	return all
}
