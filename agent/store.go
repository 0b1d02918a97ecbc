package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// The files of a state directory.
const (
	lockFile   = "lock"   // for as long as the books are read and written
	keeperFile = "keeper" // locked by the agent, which keeps lockFile locked, too
	ledgerFile = "ledger"
	batchFile  = "batch.json"  // a change of several records, until all are done
	beganFile  = "unfinished"  // there while the kernel is being told
	poolsFile  = "pools.json"  // the policy's named pools
	recordExt  = ".grant.json" // a record, after the escaped id
	asideExt   = ".unreadable" // what could not be read, kept
	maxName    = 255 - len(recordExt) - len(asideExt)
	version    = 1
)

// fileName returns a name for an id that is safe as a file's and a control
// group's: no path, nothing hidden, and nothing that the kernel has as a file.
func fileName(id string) string {
	name := url.PathEscape(id)
	first, _, dotted := strings.Cut(name, ".")
	if dotted && (first == "" || first == "cgroup" || first == "blkio" || slices.Contains(cgroup.Controllers(), first)) {
		name = first + "%2E" + name[len(first)+1:]
	}
	if name == "tasks" || name == "notify_on_release" {
		name = "%" + strings.ToUpper(hex.EncodeToString([]byte(name[:1]))) + name[1:]
	}
	return name
}

// body is what a record holds.
type body struct {
	Boot     string    `json:"boot"`
	Workload *Workload `json:"workload,omitempty"`
	// Before is, with affinity, what the process had.
	Before *before      `json:"before,omitempty"`
	Pools  []place.Pool `json:"pools,omitempty"`
}

// head is the first line of a file: its format and the checksum (SHA-256, hex) of
// the second line, the body.
type head struct {
	Record int    `json:"berthRecord"`
	Sum    string `json:"sum"`
}

// seal returns the text of a file that holds v.
func seal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	data = append(data, '\n')
	sum := sha256.Sum256(data)
	text, err := json.Marshal(head{version, hex.EncodeToString(sum[:])})
	return append(append(text, '\n'), data...), err
}

// unseal reads what seal wrote.
func unseal(text []byte, v any) error {
	first, data, _ := bytes.Cut(text, []byte("\n"))
	var h head
	if err := json.Unmarshal(first, &h); err != nil {
		return err
	}
	if h.Record != version {
		return fmt.Errorf("format %d, not %d", h.Record, version)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != h.Sum {
		return errors.New("checksum does not match")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// CorruptError is a record that cannot be read. It was set aside.
type CorruptError struct {
	File  string // where it is now
	Cause error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("record %s: %v: its workload is no longer placed; place it again, then delete the file", e.File, e.Cause)
}

// Unwrap returns what is wrong with it.
func (e *CorruptError) Unwrap() error { return e.Cause }

// store is the records of a state directory. Its caller holds the lock.
type store struct {
	dir   string
	touch func(op string) error // before each change, which fails if it does
}

// write, rename and remove change the directory.
func (s store) write(name string, text []byte) error {
	if err := s.touch("write"); err != nil {
		return err
	}
	return writeSynced(s.path(name), text)
}

func (s store) rename(from, to string) error {
	if err := s.touch("rename"); err != nil {
		return err
	}
	return os.Rename(s.path(from), s.path(to))
}

func (s store) remove(name string) error {
	if err := s.touch("remove"); err != nil {
		return err
	}
	return ignoreAbsent(os.Remove(s.path(name)))
}

// batch is a set of files to write and to remove, all or none.
type batch struct {
	Put  map[string][]byte `json:"put,omitempty"`
	Drop []string          `json:"drop,omitempty"`
}

func (b batch) isEmpty() bool { return len(b.Put)+len(b.Drop) == 0 }

// takesAway reports whether it only removes files. Then it is not written down
// first, so that it can be done on a full disk: a record that is left after a
// kill is of a workload that is found to be gone.
func (b batch) takesAway() bool { return len(b.Put) == 0 }

// prepare writes a batch to the disk, so that little can still go wrong.
func (s store) prepare(b batch) error {
	if b.takesAway() {
		return nil
	}
	text, err := seal(b)
	if err != nil {
		return err
	}
	return s.write(batchFile+".new", text)
}

// abandon removes what prepare wrote.
func (s store) abandon() error { return s.remove(batchFile + ".new") }

// commit makes the prepared batch the truth, in one step.
func (s store) commit(b batch) error {
	if b.takesAway() {
		return s.drop(b)
	}
	if err := s.rename(batchFile+".new", batchFile); err != nil {
		return err
	}
	if err := syncDir(s.dir); err != nil {
		return errors.Join(err, s.remove(batchFile))
	}
	return nil
}

// install carries out a batch. It may be done any number of times.
func (s store) install(b batch) error {
	if b.takesAway() {
		return s.drop(b)
	}
	for name, text := range b.Put {
		if err := s.write(name+".new", text); err != nil {
			return err
		}
		if err := s.rename(name+".new", name); err != nil {
			return err
		}
	}
	if err := s.drop(b); err != nil {
		return err
	}
	return s.remove(batchFile)
}

// drop removes what a batch removes.
func (s store) drop(b batch) error {
	if b.isEmpty() {
		return nil
	}
	for _, name := range b.Drop {
		if err := s.remove(name); err != nil {
			return err
		}
	}
	return syncDir(s.dir)
}

// pending reads the batch that was committed and maybe not installed.
func (s store) pending() (b batch, ok bool, err error) {
	text, err := readRegular(s.path(batchFile))
	if errors.Is(err, fs.ErrNotExist) {
		return b, false, nil
	}
	if err == nil {
		err = unseal(text, &b)
	}
	if err != nil {
		return b, false, fmt.Errorf("%s: %w; move it away, then check 'berth ps'", s.path(batchFile), err)
	}
	return b, true, nil
}

// files reads every record as it is once the pending batch is installed. What has the
// name of a record and is no file is in bad.
func (s store) files() (files map[string][]byte, bad map[string]error, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, err
	}
	files, bad = map[string][]byte{}, map[string]error{}
	for _, e := range entries {
		name := e.Name()
		switch {
		case !strings.HasSuffix(name, recordExt) && name != poolsFile:
			continue
		case !e.Type().IsRegular():
			bad[name] = errors.New("not a regular file")
			continue
		}
		if files[name], err = readRegular(s.path(name)); err != nil {
			return nil, nil, err
		}
	}
	b, _, err := s.pending()
	if err != nil {
		return nil, nil, err
	}
	for name, text := range b.Put {
		files[name] = text
		delete(bad, name)
	}
	for _, name := range b.Drop {
		delete(files, name)
	}
	return files, bad, nil
}

// aside keeps a file that cannot be read, under a name that is not in use.
func (s store) aside(name string) (string, error) {
	for i := 1; ; i++ {
		to := s.path(fmt.Sprintf("%s%s", name, asideExt))
		if i > 1 {
			to = fmt.Sprintf("%s-%d", to, i)
		}
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			return to, errors.Join(s.touch("rename"), os.Rename(s.path(name), to))
		}
	}
}

// began notes that the kernel is about to be told something; ended crosses it
// out.
func (s store) began() error {
	return s.write(beganFile, nil)
}

func (s store) ended() error { return s.remove(beganFile) }

func (s store) wasKilled() bool {
	_, err := os.Lstat(s.path(beganFile))
	return err == nil
}

func (s store) path(name string) string { return filepath.Join(s.dir, name) }

// openLock opens the file of a lock of a state directory.
func openLock(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock node: %w", err)
	}
	return f, nil
}

// tryLock takes a lock of a state directory, or returns a BusyError.
func tryLock(dir, name string) (*os.File, error) {
	f, err := openLock(dir, name)
	if err != nil {
		return nil, err
	}
	err = flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(&BusyError{dir}, f.Close())
	}
	return locked(f, err)
}

// waitLock takes the lock of a state directory, in turn with others, however long
// that takes. A wait that is given up keeps a thread and a descriptor until its turn
// comes: the kernel's queue cannot be left.
func waitLock(ctx context.Context, dir string) (*os.File, error) {
	f, err := tryLock(dir, lockFile)
	var busy *BusyError
	if !errors.As(err, &busy) {
		return f, err
	}
	if f, err = openLock(dir, lockFile); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- flock(f, syscall.LOCK_EX) }()
	select {
	case err := <-done:
		return locked(f, err)
	case <-ctx.Done():
		go func() { <-done; f.Close() }()
		return nil, fmt.Errorf("lock node %s: %w", dir, ctx.Err())
	}
}

// locked returns a file that was locked, or closes it after an error.
func locked(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock node: %w", err), f.Close())
	}
	return f, nil
}

// flock locks a file for this process alone.
func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if err != syscall.EINTR {
			return err
		}
	}
}

// writeSynced writes a new file and returns when it is on disk.
func writeSynced(name string, text []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func readRegular(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s: not a regular file", name))
	}
	return io.ReadAll(f)
}

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
