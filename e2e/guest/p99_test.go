package guest

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/e2e/idletable"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab/load"
)

const (
	// requestWork is the CPU time of a request, and p99Demand how much all of them are of the CPUs, or
	// of the workers where those are fewer.
	requestWork = time.Millisecond
	p99Demand   = 0.5
	// leadIn is how long requests come before those that count.
	leadIn = 200 * time.Millisecond
	// leftIdle is the part of the CPUs that the cap leaves idle.
	leftIdle = 0.04
)

// TestIdleByKernel measures how long requests take beside a neighbour that spins on each
// CPU in a group with cpu.idle, and under what else might help, in virtual time. The host's
// TestIdleByKernel asks for it.
func TestIdleByKernel(t *testing.T) {
	text := os.Getenv(idletable.Env)
	if text == "" {
		t.Skip("only make e2e-p99 asks for it")
	}
	var ask idletable.Ask
	if err := json.Unmarshal([]byte(text), &ask); err != nil {
		t.Fatal(err)
	}
	cpus := runtime.NumCPU()
	tr := openTree(t)
	tenant, neighbour := tr.group(t, "tenant"), tr.group(t, "neighbour")
	// A set that was empty could not be empty again before Linux 7.
	tr.set(t, neighbour, cgroup.Limits{CPUs: cpuset.MustParse("0-" + strconv.Itoa(cpus-1))})
	for range cpus {
		tr.child(t, neighbour, "spin")
	}
	tr.set(t, neighbour, cgroup.Limits{Frozen: cgroup.On})
	for seed := range ask.Seeds {
		for _, workers := range ask.Workers {
			alone := 0.0
			for _, c := range ask.Cases {
				t.Run(fmt.Sprintf("%d/%d/%s", seed, workers, c), func(t *testing.T) {
					row := idletable.Row{Kernel: kernelName(), CPUs: cpus, Workers: workers, Case: c, Seed: seed}
					tr.arrange(t, &row, neighbour, alone)
					tr.serve(t, &row, tenant, neighbour, ask.Length)
					if c == idletable.Alone {
						alone = row.Tenant
					}
					fmt.Printf("%s\n", idletable.Mark+row.CSV())
				})
			}
		}
	}
}

// arrange gives the neighbour what a case says, until the test ends.
func (tr tree) arrange(t *testing.T, row *idletable.Row, neighbour cgroup.Group, alone float64) {
	t.Helper()
	limits := cgroup.Limits{Idle: cgroup.On}
	switch row.Case {
	case idletable.Alone:
		return
	case idletable.None:
		limits = cgroup.Limits{}
	case idletable.Capped:
		const period = 10 * time.Millisecond
		limits.Period = period
		limits.Quota = time.Duration((float64(row.CPUs)*(1-leftIdle) - alone) * float64(period)).Round(time.Microsecond)
	case idletable.OffOne:
		limits.CPUs = cpuset.MustParse("1-" + strconv.Itoa(row.CPUs-1))
	}
	if limits.Idle == cgroup.On {
		tr.set(t, neighbour, limits)
	}
	tr.set(t, neighbour, cgroup.Limits{Frozen: cgroup.Off})
}

// serve has a tenant serve requests of a schedule, and fills in the row.
func (tr tree) serve(t *testing.T, row *idletable.Row, tenant, neighbour cgroup.Group, length time.Duration) {
	t.Helper()
	s := tr.server(t, tenant, "serve requests", row.Workers+2, row.Workers, requestWork, row.Case == idletable.Spread)
	usedT, usedN := usage(t, tenant), usage(t, neighbour)
	counts, ended, err := generate(s.requests, float64(min(row.CPUs, row.Workers))*p99Demand/requestWork.Seconds(), uint64(row.Seed)+1, length)
	if err != nil {
		t.Fatal(err)
	}
	row.Tenant = (usage(t, tenant) - usedT).Seconds() / ended.Seconds()
	row.Neighbour = (usage(t, neighbour) - usedN).Seconds() / ended.Seconds()
	var took []time.Duration
	for _, r := range s.end(t) {
		if r.due >= counts {
			took = append(took, r.took)
		}
	}
	slices.Sort(took)
	row.Requests = len(took)
	if row.Requests > 0 {
		row.P50, row.P99 = took[len(took)/2].Seconds()*1e3, took[len(took)*99/100].Seconds()*1e3
	}
}

// server is a tenant's process, which serves the requests that are written to a pipe.
type server struct {
	cmd      *exec.Cmd
	requests *os.File
	told     *bufio.Reader
}

// server starts a tenant, which is of childWork. Each request takes it so much CPU time; spread gives
// each of its threads one CPU.
func (tr tree) server(t *testing.T, tenant cgroup.Group, program string, procs, workers int, work time.Duration, spread bool) *server {
	t.Helper()
	in, requests, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &server{cmd: tr.command(t, tenant, program), requests: requests}
	s.cmd.Env = append(s.cmd.Env, "GOMAXPROCS="+strconv.Itoa(procs), "GOGC=off", fmt.Sprintf("BERTH_TEST_WORKERS=%d", workers),
		fmt.Sprintf("BERTH_TEST_WORK=%d", work), fmt.Sprintf("BERTH_TEST_SPREAD=%t", spread))
	s.cmd.ExtraFiles = []*os.File{in}
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	s.told = bufio.NewReader(out)
	if _, err := s.told.ReadByte(); err != nil {
		t.Fatalf("tenant: %v", err)
	}
	return s
}

// served is a request: when it was due, by the monotonic clock, and how long it took from then on.
type served struct {
	due  int64
	took time.Duration
}

// end ends a tenant, and returns what it has served.
func (s *server) end(t *testing.T) (all []served) {
	t.Helper()
	s.requests.Close()
	for {
		var line [2]int64
		if err := binary.Read(s.told, binary.LittleEndian, &line); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("tenant: %v", err)
		}
		all = append(all, served{due: line[0], took: time.Duration(line[1])})
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("tenant: %v", err)
	}
	return all
}

// generate writes when each request is due, then, to a pipe. Those count that are due from an
// instant on.
func generate(to *os.File, rate float64, seed uint64, length time.Duration) (counts int64, took time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 50}, 0); err != nil {
		return 0, 0, err
	}
	defer func() {
		err = errors.Join(err, unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0))
	}()
	began := monotonic()
	counts = began + int64(leadIn)
	fd := int(to.Fd())
	for _, due := range load.Schedule(rate, seed, leadIn+length) {
		due += began
		at := unix.NsecToTimespec(due)
		for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &at, nil) == unix.EINTR {
		}
		if _, err := unix.Write(fd, binary.LittleEndian.AppendUint64(nil, uint64(due))); err != nil {
			return 0, 0, err
		}
	}
	return counts, time.Duration(monotonic() - began), nil
}

func monotonic() int64 { return clockTime(unix.CLOCK_MONOTONIC) }

func clockTime(clock int32) int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(clock, &ts) // these clocks always exist
	return ts.Nano()
}

// serveRequests takes requests from a pipe, by several threads, and says at its end when
// each was due and how long it took.
func serveRequests(t *testing.T) {
	workers, _ := strconv.Atoi(os.Getenv("BERTH_TEST_WORKERS"))
	work, _ := strconv.ParseInt(os.Getenv("BERTH_TEST_WORK"), 10, 64)
	spread := os.Getenv("BERTH_TEST_SPREAD") == "true"
	done := make([][][2]int64, workers)
	var all, ready sync.WaitGroup
	ready.Add(workers)
	for i := range workers {
		all.Go(func() {
			runtime.LockOSThread()
			if spread {
				var cpus unix.CPUSet
				cpus.Set(i % runtime.NumCPU())
				if err := unix.SchedSetaffinity(0, &cpus); err != nil {
					t.Error(err)
				}
			}
			var request [8]byte
			ready.Done()
			for {
				if n, err := unix.Read(3, request[:]); err == unix.EINTR {
					continue
				} else if n != len(request) {
					return
				}
				for until := clockTime(unix.CLOCK_THREAD_CPUTIME_ID) + work; clockTime(unix.CLOCK_THREAD_CPUTIME_ID) < until; {
					for range 1000 {
					}
				}
				due := int64(binary.LittleEndian.Uint64(request[:]))
				done[i] = append(done[i], [2]int64{due, monotonic() - due})
			}
		})
	}
	ready.Wait()
	os.Stdout.WriteString("!")
	all.Wait()
	if err := binary.Write(os.Stdout, binary.LittleEndian, slices.Concat(done...)); err != nil {
		t.Error(err)
	}
	os.Exit(0) // before the test says that it has passed
}
