package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
)

// nest makes groups within each other: their number, the directory, and the files that
// each takes over from the one around it. With 40 the path is too long for a system call.
var nest = newTrick("nest", func(args []string) error {
	count, err := strconv.Atoi(args[0])
	if err == nil {
		err = os.Chdir(args[1])
	}
	for i := 0; i < count && err == nil; i++ {
		name := strings.Repeat("d", 200)
		err = errors.Join(os.Mkdir(name, 0o755), os.Chdir(name))
		for _, file := range args[2:] {
			text, e := os.ReadFile("../" + file)
			err = errors.Join(err, e, os.WriteFile(file, text, 0))
		}
	}
	return err
})

// takeBack writes a text to a file as often as it can.
var takeBack = newTrick("take-back", func(args []string) error {
	for {
		_ = os.WriteFile(args[0], []byte(args[1]), 0) // refused while what is around is narrower
	}
})

// TestConfinedStranger has strangers' groups that are to be kept off a service's CPU
// resist: their names are no UTF-8, or too long for a system call, or they take the CPU
// back at once. The service gets its place, and the groups that do not take the CPU are
// kept off it.
func TestConfinedStranger(t *testing.T) {
	boxed(t, func(b *box) {
		agent := b.agent("workloads: [{name: web, match: {unit: web.service}, class: LSE, cpus: 1}]\nreserved: \"0\"\n" +
			"confine: ['/*']\nagent: {rescan: 1s}\n")
		at := map[string]string{}
		for _, name := range []string{"odd", "deep", "full", "racer"} {
			dir := b.group(root, name, "cpuset")[0]
			if _, err := os.Stat(path.Join(dir, "cpuset.cpus")); err != nil {
				b.Skipf("the box gives no CPUs to its groups: %v", err)
			}
			if err := os.Chown(dir, stranger.uid, stranger.uid); err != nil {
				b.Fatal(err)
			}
			at[name] = dir
		}
		below := at["racer"] + "/below"
		for _, argv := range [][]string{
			{"mkdir", at["odd"] + "/a\xff"},
			nest.with("40", at["deep"]),
			nest.with("40", at["full"], "cpuset.mems", "cpuset.cpus"),
			{"mkdir", below},
		} {
			if out, code := b.run(stranger, argv...); code != 0 {
				b.Fatal(out)
			}
		}
		b.start(stranger, takeBack.with(below+"/cpuset.cpus", b.read(at["racer"]+"/cpuset.cpus"))...)
		b.group(root, "web.service", "cpu", "cpuset")
		agent.awaitText("msg=placed workload=web:web.service")
		if out := agent.out.String(); strings.Contains(out, "msg=refused") || strings.Count(out, "it is left as it is") > 2 {
			b.Errorf("the agent says\n%s", out)
		}
		for _, name := range []string{"odd", "deep"} {
			if got := b.read(at[name] + "/cpuset.cpus"); got != "0" {
				b.Errorf("group %s has CPUs %s", name, got)
			}
		}
		if out := agent.out.String(); !strings.Contains(out, "object=/sys/fs/cgroup/cpuset/full text=") {
			b.Errorf("the agent does not say that it leaves the full group alone:\n%s", out)
		}
	})
}

// TestBorrowedNameInASharedGroup has a stranger call a group like a unit in a group of
// root's that the stranger's group may write.
func TestBorrowedNameInASharedGroup(t *testing.T) {
	boxed(t, func(b *box) {
		agent := b.agent("workloads: [{name: web, match: {unit: web.service}, class: LSE, cpus: 1}]\nreserved: \"0\"\nagent: {rescan: 1s}\n")
		theirs := b.group(root, "user", "cpu", "cpuset")
		for _, dir := range theirs {
			if err := errors.Join(os.Chown(dir, 0, stranger.uid), os.Chmod(dir, 0o775)); err != nil {
				b.Fatal(err)
			}
		}
		for _, dir := range theirs {
			if out, code := b.run(stranger, "mkdir", path.Join(dir, "web.service")); code != 0 {
				b.Fatal(out)
			}
		}
		agent.awaitText("user/web.service")
		if out := b.ps(); strings.Contains(out, "web:user") {
			b.Errorf("the stranger's group has a place:\n%s", out)
		}
	})
}

// askMany sends requests to the agent's socket, and prints the last answer: their number,
// the method, the path, and a body. NUMBER stands for that of the request, LONG for 900 KiB.
var askMany = newTrick("ask-many", func(args []string) error {
	count, err := strconv.Atoi(args[0])
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", apiSocket) }}}
	said := ""
	for i := 0; i < count && err == nil; i++ {
		fill := strings.NewReplacer("NUMBER", strconv.Itoa(i), "LONG", strings.Repeat("long ", 180<<10))
		var r *http.Request
		var a *http.Response
		if r, err = http.NewRequest(args[1], "http://agent/v1/"+fill.Replace(args[2]), strings.NewReader(fill.Replace(args[3]))); err != nil {
			break
		}
		r.Header.Set("Content-Type", "application/json")
		if a, err = client.Do(r); err == nil {
			text, _ := io.ReadAll(a.Body)
			a.Body.Close()
			said = fmt.Sprintf("%s %.2000s ... %s", a.Status, text, text[max(0, len(text)-2000):])
		}
	}
	fmt.Println(said)
	return err
})

// TestMemberWithoutMeasure has a member of agent.group ask for places without end: in
// requests of 900 KiB under ever other names, for a device that is not there or with a
// long label, and then for as many places of one process as it can get.
func TestMemberWithoutMeasure(t *testing.T) {
	boxed(t, func(b *box) {
		if err := os.Mkdir("/run/berth", 0o755); err != nil {
			b.Fatal(err)
		}
		agent := b.agent("agent: {group: \"65534\"}\nguard: {mode: observe}\n")
		pid := strconv.Itoa(b.start(stranger, "sleep", "1000").Process.Pid)
		before := agent.taken()
		ask := func(count int, request string) string {
			b.Helper()
			out, code := b.run(stranger, askMany.with(strconv.Itoa(count), "POST", "workloads", `{"request":{`+request+`},"pid":`+pid+`}`)...)
			if code != 0 {
				b.Error(out)
			}
			return out
		}
		for _, more := range []string{`"devices":[{"names":["LONG"]}]`, `"labels":{"LONG":""}`} {
			if out := ask(100, `"id":"NUMBER","class":"LS",`+more); !strings.Contains(out, "more than 16384") {
				b.Error(out)
			}
		}
		ask(3000, `"id":"NUMBER","class":"LS","devices":[{"names":["none"]}]`)
		if out := ask(600, `"id":"wNUMBER","class":"LS"`); !strings.Contains(out, "user 65534 may not: the user has 128 workloads") {
			b.Error(out)
		}
		after := agent.taken()
		b.Logf("before %+v, afterwards %+v, %d bytes of log", before, after, len(agent.out.String()))
		if more := after.files - before.files; more > 5000 {
			b.Errorf("%d descriptors more", more)
		}
		if more := after.rss - before.rss; more > 80<<10 {
			b.Errorf("%d KiB more", more)
		}
		if out, code := b.run(root, berth, "run", "--name", "roots", "--", "true"); code != 0 {
			b.Errorf("root's workload: exit status %d: %s", code, out)
		}
	})
}
