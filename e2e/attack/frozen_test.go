package attack

import (
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
)

// TestReleaseOfTheFrozen has a workload's process frozen, so that SIGKILL does not end it.
// In the group that Berth made, it is thawed. In another one, the release ends with an
// error that names the process and the group; meanwhile the agent answers, places and
// ends its guard; the workload keeps its place until its process has ended, also while
// the agent is killed and started anew.
func TestReleaseOfTheFrozen(t *testing.T) {
	boxed(t, func(b *box) {
		cold := b.group(root, "cold", "freezer")[0]
		if _, err := os.Stat(path.Join(cold, "freezer.state")); err != nil {
			b.Skip("no v1 freezer: SIGKILL ends frozen processes of v2")
		}
		const config = "noFloor: true\nagent: {rescan: 1s}\nguard: {mode: preview}\n"
		agent := b.agent(config)
		place := func(name string) *process {
			p := b.start(root, berth, "run", "--name", name, "--class", "BE", "--", "sleep", "600")
			b.await(name+" in all its groups", func() bool { // the command starts only then
				text, err := os.ReadFile(path.Join("/proc", strconv.Itoa(p.Process.Pid), "comm"))
				return err == nil && string(text) == "sleep\n"
			}, p.out)
			return p
		}
		freeze := func(p *process, dir string) {
			b.join(p, dir)
			b.write(path.Join(dir, "freezer.state"), "FROZEN")
			b.await("frozen process", func() bool { return b.read(path.Join(dir, "freezer.state")) == "FROZEN" })
		}

		own := place("own")
		dir := path.Dir(cold) + "/berth-idle/own"
		freeze(own, dir)
		b.must(berth, "release", "own", "--kill")
		own.code()

		job := place("job")
		freeze(job, cold)
		release := b.start(root, berth, "release", "job", "--kill")
		b.await("mark of the release", func() bool { return strings.Contains(b.ps("-o", "json"), `"releasing"`) }, release.out)
		b.must(berth, "guard", "off")
		b.must(berth, "run", "--name", "next", "--class", "LSE", "--cpus", "1", "--", "true")
		select {
		case <-release.done:
			b.Errorf("the others waited for the release:\n%s", release.out)
		default:
		}
		if code := release.code(); code == 0 || !strings.Contains(release.out.String(), strconv.Itoa(job.Process.Pid)) || !strings.Contains(release.out.String(), "cold") {
			b.Errorf("release: exit status %d\n%s", code, release.out)
		}
		agent.kill()
		agent = b.agent(config)
		if out := b.ps(); !strings.Contains(out, "job") {
			b.Errorf("job has lost its place:\n%s", out)
		}
		b.write(path.Join(cold, "freezer.state"), "THAWED")
		job.code()
		agent.awaitText("msg=released workload=job")
	})
}
