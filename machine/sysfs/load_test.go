package sysfs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"

	"github.com/google/go-cmp/cmp"
)

// sample is a machine with something of everything.
func sample(t *testing.T) *machine.Machine {
	t.Helper()
	m, err := machine.Short("2s2n2l1c2t")
	if err != nil {
		t.Fatal(err)
	}
	m.Name, m.Model, m.SMT = "api-7", "Some Processor", "on"
	for i := range m.CPUs {
		m.CPUs[i].BaseKHz, m.CPUs[i].MaxKHz = 2300000, 3800000
	}
	return m
}

func sampleTree(t *testing.T) fs.FS {
	t.Helper()
	tree, err := fakekernel.Sysfs(sample(t))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// pack makes a tar archive of the sample below prefix, as tar does of a live
// /sys: files padded with zero bytes to a page, cpufreq a link to a policy.
func pack(t *testing.T, prefix string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	tree := sampleTree(t)
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		padded := append(text, make([]byte, 4096-len(text))...)
		name = strings.Replace(name, "/cpu0/cpufreq/", "/cpufreq/policy0/", 1)
		if err := w.WriteHeader(&tar.Header{Name: prefix + name, Typeflag: tar.TypeReg, Size: int64(len(padded)), Mode: 0o444}); err != nil {
			return err
		}
		_, err = w.Write(padded)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	link := &tar.Header{Name: prefix + cpuDir + "/cpu0/cpufreq", Typeflag: tar.TypeSymlink, Linkname: "../cpufreq/policy0"}
	if err := errors.Join(w.WriteHeader(link), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func squeeze(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func encode(t *testing.T, f File) []byte {
	t.Helper()
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t *testing.T, name string, data []byte) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestLoadFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file string
		data []byte
		want *machine.Machine
	}{
		{"root.tar", pack(t, ""), sample(t)},
		{"root.tar.gz", squeeze(t, pack(t, "./")), sample(t)},
		{"folder", squeeze(t, pack(t, "/captures/api-7/")), sample(t)},
		{"machine.json", encode(t, File{Schema: Schema, Machine: sample(t)}), sample(t)},
		{"topo.json", encode(t, File{Schema: Schema, Machine: sample(t), Unusual: machine.Unusual(sample(t))}), sample(t)},
	} {
		t.Run(c.file, func(t *testing.T) {
			t.Parallel()
			m, err := Load(write(t, c.file, c.data))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, m); diff != "" {
				t.Errorf("machine (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnpackDropsPadding(t *testing.T) {
	t.Parallel()
	tree, err := unpack(squeeze(t, pack(t, "./")))
	if err != nil {
		t.Fatal(err)
	}
	text, err := fs.ReadFile(tree, cpuDir+"/online")
	if err != nil || string(text) != "0-15\n" {
		t.Errorf("online is %q, %v", text, err)
	}
	if _, err := fs.Stat(tree, "proc/cpuinfo"); err != nil {
		t.Error(err)
	}
}

func TestLoadDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "host/a"), sampleTree(t)); err != nil {
		t.Fatal(err)
	}
	bare := sample(t)
	bare.Name, bare.Model = "sys", "" // proc is not below sys
	for path, want := range map[string]*machine.Machine{"host/a": sample(t), "host": sample(t), "": sample(t), "host/a/sys": bare} {
		m, err := Load(filepath.Join(dir, path))
		if err != nil {
			t.Errorf("%q: %v", path, err)
			continue
		}
		if diff := cmp.Diff(want, m); diff != "" {
			t.Errorf("%q (-want +got):\n%s", path, diff)
		}
	}
}

func TestLoadShortAndTable(t *testing.T) {
	t.Parallel()
	m, err := Load("2s4c")
	if err != nil || m.Name != "2s4c" || m.Online.Len() != 8 {
		t.Errorf("2s4c: %+v, %v", m, err)
	}
	m, err = Load(write(t, "lscpu.csv", []byte("0,0,0,0,0\n1,1,0,0,0\n")))
	if err != nil || m.Name != "lscpu.csv" || m.Online.Len() != 2 {
		t.Errorf("lscpu.csv: %+v, %v", m, err)
	}
}

// TestLoadContradictory: an exported machine that contradicts itself can be
// looked at elsewhere.
func TestLoadContradictory(t *testing.T) {
	t.Parallel()
	m, err := Lscpu("0,0,0,0,0\n1,0,1,1,1\n")
	if err != nil {
		t.Fatal(err)
	}
	back, err := Load(write(t, "m.json", encode(t, File{Schema: Schema, Machine: m})))
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(back.Validate(), machine.ErrInconsistent) {
		t.Errorf("validate: %v; want ErrInconsistent", back.Validate())
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	good := string(encode(t, File{Schema: Schema, Machine: sample(t)}))
	for _, c := range []struct{ name, data, want string }{
		{"empty", "", "no online CPU"},
		{"text", "hello\n", "1 columns"},
		{"binary", "\x7fELF\x00\x01", "neither an archive"},
		{"empty gzip", string(squeeze(t, nil)), "no sys/devices/system/cpu"},
		{"not gzip", "\x1f\x8b\x00", "archive: "},
		{"cut gzip", string(squeeze(t, pack(t, ""))[:500]), "unexpected EOF"},
		{"cut tar", string(pack(t, "")[:6000]), "archive: "},
		{"not bzip2", "BZh91AY&SY", "archive: "},
		{"empty JSON", "{}", "no schema"},
		{"other schema", `{"schema":"berth.dev/lab/v1","rounds":3}`, `schema "berth.dev/lab/v1": this program reads`},
		{"no machine", `{"schema":"` + Schema + `"}`, "no machine"},
		{"unknown field", strings.Replace(good, `"model"`, `"modle"`, 1), "modle"},
		{"unknown kind", strings.Replace(good, `"socket"`, `"sokcet"`, 1), "sokcet"},
		{"bad set", strings.Replace(good, `"online": "0-`, `"online": "9-`, 1)[:len(good)], "not those online"},
		{"no CPUs", `{"schema":"` + Schema + `","machine":{}}`, "online: no CPU"},
		{"trailing", good + "{}", "something follows"},
		{"cut JSON", good[:len(good)/2], "unexpected EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name := write(t, "in", []byte(c.data))
			m, err := Load(name)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), name) {
				t.Errorf("%v, %v; want an error that names the file and says %q", m, err, c.want)
			}
		})
	}
}

func TestLoadRefusesNames(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	for _, c := range []struct{ source, want string }{
		{"2s4x", `"x" is none of the letters`},
		{filepath.Join(empty, "none"), "there is no file"},
		{empty, "no sys/devices/system/cpu in it"},
	} {
		if _, err := Load(c.source); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want an error with %q", c.source, err, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"schema":"berth.dev/machine/v1","machine":{"online":"0","cpus":[{"id":0}],"domains":[]}}`))
	f.Add([]byte("0,0,0,0,0\n"))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, file := range []string{"online", "../cpu/online", "cpu0/cpufreq"} {
		if err := w.WriteHeader(&tar.Header{Name: cpuDir + "/" + file, Typeflag: tar.TypeReg, Size: 1}); err != nil {
			f.Fatal(err)
		}
		if _, err := w.Write([]byte("0")); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decode(data)
		if err != nil {
			return
		}
		if err := m.Validate(); err != nil && !errors.Is(err, machine.ErrInconsistent) {
			t.Fatalf("decoded a machine of bad form: %v", err)
		}
		machine.Unusual(m)
	})
}

// TestLoadCapture reads what tar made of a live guest's /sys: testdata/guest.tar.bz2.
func TestLoadCapture(t *testing.T) {
	t.Parallel()
	m, err := Load("testdata/guest.tar.bz2")
	if err != nil {
		t.Fatal(err)
	}
	check(t, m, map[machine.Kind]string{
		machine.Socket: "0:0-1", machine.Die: "0:0-1", machine.Node: "0:0-1",
		machine.L3: "0:0-1", machine.L2: "0:0 1:1", machine.Core: "0:0 1:1",
	})
	if l3 := m.ByKind(machine.L3)[0]; l3.Bytes != 260<<20 {
		t.Errorf("L3 has %d bytes", l3.Bytes)
	}
	if node := m.ByKind(machine.Node)[0]; node.Bytes < 1<<30 {
		t.Errorf("node has %d bytes", node.Bytes)
	}
	if m.CPUs[1].Capacity != 1024 || m.SMT != "notsupported" || m.Name != "guest.tar.bz2" {
		t.Errorf("capacity %d, SMT %q, name %q", m.CPUs[1].Capacity, m.SMT, m.Name)
	}
	roundTrip(t, m)
}
