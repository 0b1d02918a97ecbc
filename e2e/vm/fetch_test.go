package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/vmtest"
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

func TestMajorMinor(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"6.12.95-1~bpo12+1": "6.12", "7.3": "7.3", "7": "7"} {
		if got := majorMinor(version); got != want {
			t.Errorf("majorMinor(%s) = %s, want %s", version, got, want)
		}
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
		deb := filepath.Join(dir, debsDir, "a_1_all.deb")
		if err := os.Mkdir(filepath.Dir(deb), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(deb, []byte("package"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := writeManifest(dir); err != nil {
			t.Fatal(err)
		}
		if err := tc.damage(deb, filepath.Join(dir, manifestFile)); err != nil {
			t.Fatal(err)
		}
		if err := verify(dir); (err == nil) != tc.intact {
			t.Errorf("%s: verify = %v", tc.name, err)
		}
	}
}

func TestParseStatus(t *testing.T) {
	t.Parallel()
	text := "Package: a\nStatus: install ok installed\nVersion: 1:2-3\n\nPackage: b\nDescription: x\n Version: 9\nVersion: 4\n"
	// A line that goes on starts with a blank.
	if diff := cmp.Diff([]string{"a 1:2-3", "b 4"}, parseStatus(text)); diff != "" {
		t.Errorf("parseStatus (-want +got):\n%s", diff)
	}
}

func TestCompleteDisk(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		damage func(image, manifest string) error
		intact bool
	}{
		{"intact", func(string, string) error { return nil }, true},
		{"altered image", func(image, _ string) error { return os.WriteFile(image, []byte("other"), 0o644) }, false},
		{"missing image", func(image, _ string) error { return os.Remove(image) }, false},
		{"missing manifest", func(_, manifest string) error { return os.Remove(manifest) }, false},
		{"malformed manifest", func(_, manifest string) error { return os.WriteFile(manifest, []byte("{"), 0o644) }, false},
	} {
		dir := t.TempDir()
		image, manifest := filepath.Join(dir, vmtest.DiskFile), filepath.Join(dir, diskManifest)
		if err := os.WriteFile(image, []byte("image"), 0o644); err != nil {
			t.Fatal(err)
		}
		sum, err := sha256Of(image)
		if err != nil {
			t.Fatal(err)
		}
		if err := writeJSON(manifest, diskContent{SHA256: sum}); err != nil {
			t.Fatal(err)
		}
		if err := tc.damage(image, manifest); err != nil {
			t.Fatal(err)
		}
		if err := completeDisk(dir); (err == nil) != tc.intact {
			t.Errorf("%s: completeDisk = %v", tc.name, err)
		}
	}
}
