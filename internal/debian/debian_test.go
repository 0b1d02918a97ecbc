package debian

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseMadison(t *testing.T) {
	t.Parallel()
	text := ` linux-image | 7.3.4-1~bpo13+1 | http://mirror.example/debian trixie-backports/main amd64 Packages
 linux-image |  6.1.176-1 | http://mirror.example/debian bookworm/main amd64 Packages
 linux-image |  6.1.170-1 | http://mirror.example/debian bookworm/main amd64 Packages
`
	for _, tc := range []struct{ text, suite, want string }{
		{text, "trixie-backports", "7.3.4-1~bpo13+1"},
		{text, "bookworm", "6.1.176-1"},
		{text, "trixie", ""},
		{text, "backports", ""},
		{"", "bookworm", ""},
		{"N: Unable to locate package linux-image\n", "bookworm", ""},
	} {
		got, ok := parseMadison(tc.text, tc.suite)
		if got != tc.want || ok != (tc.want != "") {
			t.Errorf("parseMadison(%s) = %q, %v; want %q", tc.suite, got, ok, tc.want)
		}
	}
}

func TestParsePinned(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		record string
		want   []string
	}{
		{
			"Package: a\nDepends: kmod, linux-base-7.3 (= 7.3-1), dracut | initramfs (>= 0.1), linux-binary-7.3 (= 7.3-1)\n",
			[]string{"linux-base-7.3=7.3-1", "linux-binary-7.3=7.3-1"},
		},
		{"Package: a\nBreaks: b (= 1)\n", nil},
		{"Depends: b (>= 1), c (= \n", nil},
		{"", nil},
	} {
		if diff := cmp.Diff(tc.want, parsePinned(tc.record)); diff != "" {
			t.Errorf("parsePinned(%q) (-want +got):\n%s", tc.record, diff)
		}
	}
}

func TestParseURIs(t *testing.T) {
	t.Parallel()
	text := `'http://mirror.example/pool/busybox.deb' busybox-static_1%3a1.35.0-4_amd64.deb 928188 SHA256:7add
W: a warning
'http://mirror.example/pool/short.deb'
`
	files := parseURIs("/debs", text)
	if diff := cmp.Diff([]string{"/debs/busybox-static_1%3a1.35.0-4_amd64.deb"}, files); diff != "" {
		t.Errorf("parseURIs (-want +got):\n%s", diff)
	}
	if got, want := packageOf(filepath.Base(files[0])), "busybox-static=1:1.35.0-4"; got != want {
		t.Errorf("packageOf = %s, want %s", got, want)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		damage func(deb, manifest string) error
		intact bool
	}{
		{"intact", func(string, string) error { return nil }, true},
		{"altered package", func(deb, _ string) error { return os.WriteFile(deb, []byte("other"), 0o644) }, false},
		{"missing package", func(deb, _ string) error { return os.Remove(deb) }, false},
		{"missing manifest", func(_, manifest string) error { return os.Remove(manifest) }, false},
		{"malformed manifest", func(_, manifest string) error { return os.WriteFile(manifest, []byte("{"), 0o644) }, false},
	} {
		dir := t.TempDir()
		deb := filepath.Join(dir, Debs, "a_1_all.deb")
		if err := os.Mkdir(filepath.Dir(deb), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(deb, []byte("package"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := WriteManifest(dir); err != nil {
			t.Fatal(err)
		}
		if err := tc.damage(deb, filepath.Join(dir, Manifest)); err != nil {
			t.Fatal(err)
		}
		if err := Verify(dir); (err == nil) != tc.intact {
			t.Errorf("%s: verify = %v", tc.name, err)
		}
	}
}
