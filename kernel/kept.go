package kernel

import (
	"errors"
	"sync"
)

// Kept are files that stay open from one reading to the next, by their names. The zero value has none.
// Several goroutines may use it.
type Kept struct {
	mu    sync.Mutex
	files map[string]File
	buf   []byte
}

// Read returns the whole text of a file. One that cannot be read any more, as of a control group that was
// removed, is opened anew under its name.
func (k *Kept) Read(name string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, open := k.files[name]
	for {
		if !open {
			var err error
			if f, err = OpenFile(name); err != nil {
				return "", err
			}
			if k.files == nil {
				k.files = map[string]File{}
			}
			k.files[name] = f
		}
		var text []byte
		var err error
		if text, k.buf, err = f.Read(k.buf); err == nil {
			return string(text), nil
		}
		if err := errors.Join(err, k.close(name)); !open {
			return "", err
		}
		open = false
	}
}

// Len is how many files are open.
func (k *Kept) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.files)
}

// Close closes the files of which matches is true.
func (k *Kept) Close(matches func(name string) bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for name := range k.files {
		if matches(name) {
			errs = append(errs, k.close(name))
		}
	}
	return errors.Join(errs...)
}

func (k *Kept) close(name string) error {
	f := k.files[name]
	delete(k.files, name)
	return f.Close()
}
