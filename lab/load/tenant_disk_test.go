package load

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Every third request reads the disk; one that cannot is answered with an error.
func TestDisk(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(name, make([]byte, 4*blockBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := NewTenant(TenantConfig{Units: 1, Disk: name, DiskEvery: 3})
	if errors.Is(err, unix.EINVAL) {
		t.Skipf("the file system of %s cannot be read past the page cache", t.TempDir())
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if response, body := get(t, s, "GET", articlePath); response.StatusCode != http.StatusOK {
			t.Errorf("status %d: %s", response.StatusCode, body)
		}
	}
	s.disk.file.Close()
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusInternalServerError} {
		response, body := get(t, s, "GET", articlePath)
		if response.StatusCode != want {
			t.Errorf("request %d without its disk: status %d, want %d", i+1, response.StatusCode, want)
		}
		if want != http.StatusOK && !strings.Contains(body, "read disk") {
			t.Errorf("body %q", body)
		}
	}
}

func TestDiskRefuses(t *testing.T) {
	t.Parallel()
	small := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(small, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []TenantConfig{{Disk: small, DiskEvery: 1}, {Disk: small + "er", DiskEvery: 1}, {Disk: small}, {DiskEvery: -1}} {
		if _, err := NewTenant(c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}
