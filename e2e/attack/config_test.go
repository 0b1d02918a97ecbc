package attack

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestConfigOfAStranger has root start an agent with a configuration that a stranger can
// change, and has a stranger take over one that is in use. Neither is read.
func TestConfigOfAStranger(t *testing.T) {
	boxed(t, func(b *box) {
		const conf = "apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\n"
		b.write("/tmp/theirs.yaml", conf)
		if err := os.Chown("/tmp/theirs.yaml", stranger.uid, stranger.uid); err != nil {
			b.Fatal(err)
		}
		out, code := b.run(root, berth, "agent", "--config", "/tmp/theirs.yaml")
		if code != 1 || !strings.Contains(out, "/tmp/theirs.yaml: belongs to another user (65534)") {
			b.Errorf("exit status %d: %s", code, out)
		}
		if err := os.Mkdir("/run/etc", 0o755); err != nil {
			b.Fatal(err)
		}
		b.write("/run/etc/node.yaml", conf)
		p := b.start(root, berth, "agent", "--config", "/run/etc/node.yaml")
		p.awaitText("msg=started")
		b.write("/run/etc/node.yaml", conf+"reserved: \"0\"\n")
		p.awaitText("msg=reloaded")
		if err := os.Chmod("/run/etc/node.yaml", 0o666); err != nil {
			b.Fatal(err)
		}
		if out, code := b.run(stranger, "sh", "-c", "echo 'reserved: \"1\"' >> /run/etc/node.yaml"); code != 0 {
			b.Fatal(out)
		}
		p.awaitText("msg=kept")
		if !strings.Contains(p.out.String(), "others may write to it") {
			b.Errorf("the agent does not say why:\n%s", p.out)
		}
		p.end(syscall.SIGTERM)
	})
}
