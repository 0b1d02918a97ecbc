package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/program"
)

// playWeb is a small web server, of a user's, at an address. It says that it is ready by
// answering; "dying" ends after a thousand answers.
func playWeb(how, addr string) {
	var answered atomic.Int64
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for began := time.Now(); time.Since(began) < 20*time.Microsecond; { // a request's work
		}
		fmt.Fprint(w, "hello")
		if how == "dying" && answered.Add(1) > 1000 {
			fmt.Fprintln(os.Stderr, "out of luck")
			os.Exit(5)
		}
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(addr, handler))
	os.Exit(1)
}

// freeAddr is an address of this process's own: no other one takes the port before it is used.
func freeAddr(t *testing.T) string {
	t.Helper()
	pid := os.Getpid()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+pid>>16&63, pid>>8&255, pid&255))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// miniature is an experiment of a second.
func miniature(t *testing.T, tenant TenantSpec) (Spec, Options) {
	t.Helper()
	e := IsolationSpec()
	if err := e.Keep([]string{Unisolated}); err != nil {
		t.Fatal(err)
	}
	tenant.WorkingSetBytes, tenant.Demand = e.Tenant.WorkingSetBytes, 0.1
	e.Blocks, e.Window, e.Settle, e.Tenant, e.Rate = 1, Duration(200*time.Millisecond), Duration(50*time.Millisecond), tenant, 300
	e.ThreadsPerCPU = 1
	return e, Options{Exe: os.Args[0], Dir: t.TempDir(), UndoLogDir: t.TempDir(), Unprivileged: true}
}

// measured reports whether the tenant was seen to work: a busy host may have no CPU for it in a round,
// and CPU time is told in ticks of 10 ms.
func measured(rounds []Round) bool {
	return slices.ContainsFunc(rounds, func(r Round) bool { return r.Load.Done > 0 && r.Tenant.CPUSeconds > 0 })
}

// A user's command is started as tenant, another as neighbour; both are measured, and
// gone afterwards.
func TestProgramTenant(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	addr := freeAddr(t)
	e, opt := miniature(t, TenantSpec{Service: Command, Command: os.Args[0] + " __web good " + addr, Probe: "http://" + addr + "/{1-9}"})
	e.Neighbour.Command = program.Shell("echo begun >> " + opt.Dir + "/begun; sh -c 'i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done'")
	e.Neighbour.Kernel, e.Neighbour.Threads = noise.Program, 1
	r, err := Isolate(t.Context(), e, opt)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rounds) != 3 || !r.Complete || r.Setup.Rate != 300 || r.Setup.TenantCPUs <= 0 {
		t.Errorf("%d rounds, complete %v, setup %+v", len(r.Rounds), r.Complete, r.Setup)
	}
	worked := false
	for _, round := range r.Rounds {
		if round.Load.Failed > 0 {
			t.Errorf("%s: failed %v", round.Scenario, round.Load.Errors)
		}
		if n := round.Neighbour; n != nil {
			worked = worked || n.Work > 0
			if n.Unit != commandUnit {
				t.Errorf("%s: neighbour %+v", round.Scenario, n)
			}
		}
	}
	if !worked || !measured(r.Rounds) {
		t.Errorf("the neighbour worked: %v; tenant: %+v", worked, r.Rounds)
	}
	if begun, err := os.ReadFile(opt.Dir + "/begun"); err != nil || strings.Count(string(begun), "\n") < 2 {
		t.Errorf("the neighbour ended, and was not started again: %q, %v", begun, err)
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("the tenant lives on")
	}
}

// A tenant that is asked by runs of a command: each is a request, in the tenant's place.
func TestExecTenant(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	dir := t.TempDir()
	e, opt := miniature(t, TenantSpec{Service: Command, Command: "touch " + dir + "/up; exec sleep 1000",
		Exec: "test -e " + dir + "/up && echo {3-5} >> " + dir + "/asked"})
	e.Window, e.Rate = Duration(500*time.Millisecond), 250
	r, err := Isolate(t.Context(), e, opt)
	if err != nil {
		t.Fatal(err)
	}
	if r.Setup.ProcessStart <= 0 || r.Setup.ProcessStart > Duration(10*time.Second) || r.Setup.TenantCPUs <= 0 {
		t.Errorf("setup %+v", r.Setup)
	}
	for _, round := range r.Rounds {
		if round.Load.Failed > 0 {
			t.Errorf("%s: failed %v", round.Scenario, round.Load.Errors)
		}
	}
	if !measured(r.Rounds) {
		t.Errorf("tenant: %+v", r.Rounds)
	}
	asked, err := os.ReadFile(dir + "/asked")
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, number := range strings.Fields(string(asked)) {
		times[number]++
	}
	if len(times) != 3 || times["3"] == 0 || times["4"] == 0 || times["5"] == 0 {
		t.Errorf("asked for %v, want 3, 4 and 5", times)
	}
}

// What a program does wrong is said in words: which, what, and what to do.
func TestProgramTenantRefuses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	addr := freeAddr(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	web := os.Args[0] + " __web "
	for name, test := range map[string]struct {
		tenant TenantSpec
		want   string
	}{
		"dies at once":       {TenantSpec{Service: Command, Command: "echo no port >&2; exit 4", Probe: "http://" + addr}, "tenant ended before it answered: exit status 1: no port"},
		"dies in the middle": {TenantSpec{Service: Command, Command: web + "dying " + addr, Probe: "http://" + addr}, "tenant died during the round: exit status 1: out of luck"},
		"taken":              {TenantSpec{Service: Command, Command: "sleep 100", Probe: "http://" + taken.Addr().String()}, "something listens at " + taken.Addr().String() + " already"},
		"no process":         {TenantSpec{Service: Outside, PID: 1 << 22, Probe: "http://" + addr}, "there is no such process"},
		"no group":           {TenantSpec{Service: Outside, Group: "no/such/group", Probe: "http://" + addr}, "there is no such control group"},
		"elsewhere":          {TenantSpec{Service: Outside, PID: os.Getpid(), Probe: "http://192.0.2.1"}, "it is not of this host"},
		"no such probe":      {TenantSpec{Service: Command, Command: "sleep 100", Exec: "no-such-command-at-all"}, "the command of --exec does not succeed: exit status 127"},
		"probe that hangs":   {TenantSpec{Service: Command, Command: "sleep 100", Exec: "sleep 100"}, "has not ended after 10 s"},
		"few requests":       {TenantSpec{Service: Command, Command: "sleep 100", Exec: ":", Connections: 1}, "say --duration"},
		"nobody answers":     {TenantSpec{Service: Outside, PID: os.Getpid(), Probe: "http://" + addr}, "is --probe where it listens"},
	} {
		t.Run(name, func(t *testing.T) {
			e, opt := miniature(t, test.tenant)
			e.Rate = 2000
			if test.tenant.Exec != "" {
				e.Rate = 100
			}
			if e.Tenant.Service == Outside {
				e.Beside()
			}
			if err := e.Validate(); err != nil {
				t.Fatal(err)
			}
			_, err := Isolate(t.Context(), e, opt)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if conn, err := net.Dial("tcp", addr); err == nil {
				conn.Close()
				t.Error("the tenant lives on")
			}
		})
	}
}

// The command of --exec that fails is run again only while the program may not be ready.
func TestTries(t *testing.T) {
	t.Parallel()
	c := startChild(t, "silent")
	for ready, want := range map[bool]int{true: 1, false: 3} {
		n := 0
		err := tries(t.Context(), c, load.Target{Protocol: load.Exec}, ready, func(context.Context) error {
			if n++; n == 3 {
				return nil
			}
			return errors.New("exit status 3: oops")
		})
		if failed := err != nil && strings.Contains(err.Error(), "the command of --exec does not succeed: exit status 3: oops"); n != want || failed != ready {
			t.Errorf("ready %v: run %d times, want %d; %v", ready, n, want, err)
		}
	}
}

// A server that runs is measured, and is afterwards as it was: it lives, where it was.
func TestOutsideTenant(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	addr := freeAddr(t)
	server := exec.Command(os.Args[0], "__web", "good", addr)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	for n := 0; ; n++ {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
			break
		}
		if n > 6000 {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	before, err := sched.Get(server.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	e, opt := miniature(t, TenantSpec{Service: Outside, PID: server.Process.Pid, Probe: "http://" + addr})
	if err := e.Validate(); err == nil || !strings.Contains(err.Error(), "nobody joins the group") {
		t.Errorf("together with a tenant that runs: %v", err)
	}
	e.Beside()
	e.Scenarios = append(e.Scenarios, Scenario{Name: "pinned", Neighbour: true, Isolation: Isolation{Split: true}})
	e.Rate = 0 // chosen from what a request takes
	r, err := Isolate(t.Context(), e, opt)
	if err != nil {
		t.Fatal(err)
	}
	for _, round := range r.Rounds {
		if slices.ContainsFunc(round.Knobs, func(k Knob) bool { return k.Of == string(Tenant) }) {
			t.Errorf("%s: knobs of the tenant: %v", round.Scenario, round.Knobs)
		}
	}
	if r.Setup.Rate < 1 || r.Setup.TenantCPUs <= 0 || !measured(r.Rounds) {
		t.Errorf("setup %+v, tenant: %+v", r.Setup, r.Rounds)
	}
	after, err := sched.Get(server.Process.Pid)
	if err != nil || after.String() != before.String() || after.Affinity != before.Affinity {
		t.Errorf("it was %v on %v, and is %v on %v, %v", before, before.Affinity, after, after.Affinity, err)
	}
}

func TestTenantSpecRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		tenant TenantSpec
		want   string
	}{
		{TenantSpec{Service: "apache"}, "want one of article, nginx, redis, memcached, postgres, program, running"},
		{TenantSpec{Service: Command, Probe: "http://h"}, "want what starts it"},
		{TenantSpec{Service: Command, Command: "x"}, "want --probe"},
		{TenantSpec{Service: Command, Command: "x"}, "or --exec"},
		{TenantSpec{Service: Command, Command: "x", Exec: " "}, "exec: want a command"},
		{TenantSpec{Service: Command, Command: "x", Exec: "y", Probe: "http://h"}, "want one of --exec"},
		{TenantSpec{Service: Command, Command: "x", Exec: "y {9-1}"}, "want the lower number first"},
		{TenantSpec{Service: Article, Exec: "y"}, "say --tenant COMMAND"},
		{TenantSpec{Service: Outside, PID: 1, Exec: "y"}, "use --probe"},
		{TenantSpec{Service: "redis", Probe: "redis://h"}, "leave out --probe"},
		{TenantSpec{Service: Article, Ask: "x"}, "is asked for articles"},
		{TenantSpec{Service: Outside, Probe: "http://h"}, "either its process or its control group"},
		{TenantSpec{Service: Outside, Probe: "http://h", PID: 1, Group: "x"}, "either its process or its control group"},
		{TenantSpec{Service: "redis", PID: 1}, "no process or group of its own"},
		{TenantSpec{Service: "redis", ServiceTime: 1}, "say --rate"},
		{TenantSpec{Service: Command, Command: "x", Probe: "gopher://h"}, "want http://"},
		{TenantSpec{Service: Outside, Probe: "http://h", PID: -1}, "no process has that number"},
		{TenantSpec{Service: "redis", Connections: -1}, "want at most 4096"},
	} {
		if err := test.tenant.validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.tenant, err, test.want)
		}
	}
	for _, s := range program.Servers() {
		if err := (TenantSpec{Service: s.Name}).validate(); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
	}
}
