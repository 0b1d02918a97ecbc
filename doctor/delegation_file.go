package doctor

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"berth.dev/berth/kernel"
)

// DelegationPath is the drop-in, relative to the root. systemd.unit(5) gives 60 to 90 to
// files of the local administrator.
const DelegationPath = "etc/systemd/system/user@.service.d/60-berth-delegate.conf"

// ErrDelegationCustomised says that the drop-in is not the one that Berth wrote.
var ErrDelegationCustomised = errors.New("the file was changed by another writer")

const (
	fingerprintKey = "# fingerprint: sha256:"
	madeDirLine    = "# Berth made this directory."
)

// dropIn returns the text of the drop-in. Its fingerprint is the hash of all
// other lines, so that a changed drop-in can be recognised. It stores madeDir
// for Disable.
func dropIn(madeDir bool) []byte {
	var b strings.Builder
	b.WriteString("# Lets ordinary users divide their share of these controllers (cgroup v2).\n" +
		"# Written by \"berth doctor delegation enable\", removed by \"... disable\".\n" +
		"# To change it, copy it to another name: Berth does not touch a changed file.\n")
	if madeDir {
		b.WriteString(madeDirLine + "\n")
	}
	body := b.String()
	end := "[Service]\nDelegate=" + strings.Join(wanted(), " ") + "\n"
	return []byte(body + fingerprintKey + fingerprint([]byte(body+end)) + "\n" + end)
}

func fingerprint(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }

// isOurs reports whether text carries the fingerprint of its other lines.
func isOurs(text []byte) bool {
	before, rest, found := bytes.Cut(text, []byte(fingerprintKey))
	if !found || (len(before) > 0 && before[len(before)-1] != '\n') {
		return false
	}
	sum, after, found := bytes.Cut(rest, []byte("\n"))
	return found && string(sum) == fingerprint(append(bytes.Clone(before), after...))
}

// FileState is the state of the file at Path.
type FileState string

// The states of the file.
const (
	FileAbsent     FileState = "absent"
	FileOurs       FileState = "unchanged"
	FileOutdated   FileState = "unchanged, of another version of Berth"
	FileCustomised FileState = "customised"
)

// dropInFile returns the state of the drop-in and, if it is a file, its text.
func (h *host) dropInFile() (FileState, []byte) {
	info, there := h.lstat(DelegationPath)
	switch {
	case !there:
		return FileAbsent, nil
	case !info.Mode().IsRegular():
		return FileCustomised, nil
	}
	text, err := fs.ReadFile(h.fsys, DelegationPath)
	h.fail(err)
	switch {
	case !isOurs(text):
		return FileCustomised, text
	case !bytes.Equal(text, dropIn(true)) && !bytes.Equal(text, dropIn(false)):
		return FileOutdated, text
	}
	return FileOurs, text
}

// DelegationChange is the plan of Enable or Disable, as data for a preview.
type DelegationChange struct {
	Path string `json:"path"` // relative to the root
	// Text is the file's new text; empty to remove the file.
	Text string `json:"text,omitempty"`
	// MakeDir and RemoveDir concern the directory of Path. It is removed only
	// where Berth made it and nothing else is in it.
	MakeDir   bool `json:"makeDir,omitempty"`
	RemoveDir bool `json:"removeDir,omitempty"`
	// Nothing says why there is nothing to do, "" where there is.
	Nothing string `json:"nothing,omitempty"`

	before []byte // the file's text when the change was decided, nil where absent
}

// Enable decides how to install the drop-in. The error is ErrDelegationCustomised or a
// kernel.NotSupportedError where that must not or cannot be done.
func (s Delegation) Enable() (DelegationChange, error) {
	c := DelegationChange{Path: DelegationPath, MakeDir: !s.dirExists, before: s.text}
	switch {
	case s.File == FileCustomised:
		return c, fmt.Errorf("write /%s: %w", DelegationPath, ErrDelegationCustomised)
	case s.State == DelegationNotApplicable:
		return c, &kernel.NotSupportedError{Feature: "delegation to users", Reason: s.Reason, Remedy: s.Remedy}
	case s.File == FileOurs:
		c.Nothing = "the drop-in is installed already"
	case s.File == FileAbsent && len(lacking(s.Configured)) == 0:
		c.Nothing = "other files delegate all of it already: " + s.sourceNames()
	}
	madeDir := c.MakeDir || bytes.Contains(s.text, []byte(madeDirLine))
	c.Text = string(dropIn(madeDir))
	return c, nil
}

// Disable decides how to remove the drop-in. The error is ErrDelegationCustomised where
// it is not Berth's to remove.
func (s Delegation) Disable() (DelegationChange, error) {
	c := DelegationChange{Path: DelegationPath, before: s.text}
	switch s.File {
	case FileCustomised:
		return c, fmt.Errorf("remove /%s: %w", DelegationPath, ErrDelegationCustomised)
	case FileAbsent:
		c.Nothing = "there is no drop-in of Berth"
	}
	c.RemoveDir = bytes.Contains(s.text, []byte(madeDirLine))
	return c, nil
}

// Apply does the change under the directory root. A file is replaced in one
// step and is on disk when Apply returns. It fails if the file has changed
// since the change was decided.
func (c DelegationChange) Apply(root string) (err error) {
	if c.Nothing != "" {
		return nil
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("open root: %w", err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if c.Text == "" {
		if err := c.remove(r); err != nil {
			return fmt.Errorf("remove /%s: %w", c.Path, err)
		}
		return nil
	}
	if err := c.write(r); err != nil {
		return fmt.Errorf("write /%s: %w", c.Path, err)
	}
	return nil
}

func (c DelegationChange) write(r *os.Root) error {
	dir := path.Dir(c.Path)
	if c.MakeDir {
		if err := r.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := r.Chmod(dir, 0o755); err != nil { // whatever the umask
			return err
		}
	}
	temp := path.Join(dir, fmt.Sprintf(".%s.%d", path.Base(c.Path), os.Getpid()))
	err := writeSynced(r, temp, c.Text)
	if err == nil {
		err = c.unchanged(r)
	}
	if err == nil {
		err = r.Rename(temp, c.Path)
	}
	if err != nil {
		return errors.Join(err, kernel.IgnoreAbsent(r.Remove(temp)))
	}
	return syncDir(r, dir)
}

func writeSynced(r *os.Root, name, text string) error {
	f, err := r.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Chmod(0o644) // whatever the umask
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(r *os.Root, dir string) error {
	d, err := r.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (c DelegationChange) remove(r *os.Root) error {
	if err := c.unchanged(r); err != nil {
		return err
	}
	if err := r.Remove(c.Path); err != nil {
		return err
	}
	dir := path.Dir(c.Path)
	entries, err := fs.ReadDir(r.FS(), dir)
	switch {
	case err != nil:
		return err
	case !c.RemoveDir || len(entries) > 0:
		return syncDir(r, dir)
	}
	return r.Remove(dir)
}

// unchanged returns an error if the file has changed.
func (c DelegationChange) unchanged(r *os.Root) error {
	now, err := r.ReadFile(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.before == nil:
		return nil
	case err != nil:
		return err
	case c.before == nil || !bytes.Equal(now, c.before):
		return ErrDelegationCustomised
	}
	return nil
}
