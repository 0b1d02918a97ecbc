package attack

import (
	"os"
	"path"
	"strings"
	"testing"
)

// TestBorrowedName has a stranger, and root in a container, call a control group of their own like
// a unit for which the administrator has set CPUs aside. They get none, and the unit gets them.
func TestBorrowedName(t *testing.T) {
	boxed(t, func(b *box) {
		agent := b.agent("workloads: [{name: web, match: {unit: web.service}, class: LSE, cpus: 1}]\nreserved: \"0\"\nagent: {rescan: 1s}\n")
		theirs := b.group(stranger, "user", "cpu", "cpuset")
		for _, dir := range theirs {
			if out, code := b.run(stranger, "mkdir", path.Join(dir, "web.service")); code != 0 {
				b.Fatal(out)
			}
		}
		agent.awaitText("user/web.service")
		if out := b.ps(); strings.Contains(out, "web:user") {
			b.Errorf("the stranger's group has a place:\n%s", out)
		}
		container := "docker/" + strings.Repeat("ab", 32)
		for _, group := range []string{"docker", container, container + "/web.service"} {
			b.group(root, group, "cpu", "cpuset") // as who may write to the container's own groups can
		}
		agent.awaitText("who runs in a container chose its name")
		if out := b.ps(); strings.Contains(out, "web:docker") {
			b.Errorf("the container's group has a place:\n%s", out)
		}
		b.group(root, "web.service", "cpu", "cpuset")
		agent.awaitText("workload=web:web.service")
		if out := b.ps(); !strings.Contains(out, "web:web.service") {
			b.Errorf("the unit has no place:\n%s\n%s", out, agent.out)
		}
		for _, dir := range theirs {
			if err := os.Remove(path.Join(dir, "web.service")); err != nil {
				b.Error(err)
			}
		}
	})
}
