package daemon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/kernel"
)

// versions are the last configurations that were in force, a file of JSON each. They
// outlive the boot where the directory does.
type versions struct{ dir string }

const (
	// mostVersions is how many are kept.
	mostVersions = 10
	// nextVersion is one that is about to come into force: it does so once the
	// configuration file says the same.
	nextVersion = "next.json"
)

// LastingDir is the directory, of a name, of what outlives the boot. For root's state directory in
// /run/berth, which does not, it is one in /var/lib/berth; HOST/run/berth is that of a host whose
// tree is in HOST. Else it is one beside the state directory, which outlives the boot if that does.
func LastingDir(c *config.NodeConfig, name string) string {
	return lastingDir(os.Geteuid(), StateDir(c), name)
}

func lastingDir(uid int, state, name string) string {
	state = filepath.Clean(state)
	if host, ok := strings.CutSuffix(strings.TrimSuffix(state, "/node"), "/run/berth"); ok && uid == 0 {
		return filepath.Join(host+"/var/lib/berth", name)
	}
	return state + "-" + name
}

// versionsDir is where they are kept.
func versionsDir(c *config.NodeConfig) string { return LastingDir(c, "config") }

func versionFile(number int) string { return fmt.Sprintf("%06d.json", number) }

// list returns the versions, the latest first.
func (v versions) list() (all []api.Version, err error) {
	err = kernel.CheckPrivateDir(v.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var entries []os.DirEntry
	if err == nil {
		entries, err = os.ReadDir(v.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("history of the configuration: %w", err)
	}
	for _, e := range entries {
		if number, isVersion := strings.CutSuffix(e.Name(), ".json"); isVersion && e.Name() != nextVersion {
			if _, err := strconv.Atoi(number); err != nil {
				continue
			}
			one, err := v.read(e.Name())
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b api.Version) int { return cmp.Compare(b.Number, a.Number) })
	if len(all) > 0 {
		all[0].InForce = true
	}
	return all, nil
}

func (v versions) read(name string) (one api.Version, err error) {
	text, err := kernel.ReadPrivateFile(filepath.Join(v.dir, name))
	if err == nil {
		err = json.Unmarshal(text, &one)
	}
	if err != nil {
		return one, fmt.Errorf("history of the configuration: %s: %w; move it away", filepath.Join(v.dir, name), err)
	}
	return one, nil
}

// prepare writes down a version that is about to come into force, and returns how that is
// undone.
func (v versions) prepare(one api.Version) (undo func() error, err error) {
	text, err := json.Marshal(one)
	if err == nil {
		err = kernel.MakePrivateDir(v.dir)
	}
	name := filepath.Join(v.dir, nextVersion)
	if err == nil {
		err = kernel.ReplacePrivateFile(name, text)
	}
	if err != nil {
		return nil, fmt.Errorf("history of the configuration, without which there is no way back: %w", err)
	}
	return func() error { return os.Remove(name) }, nil
}

// promote has the prepared version be the latest, and forgets the oldest.
func (v versions) promote() (number int, err error) {
	one, err := v.read(nextVersion)
	if err != nil {
		return 0, err
	}
	if err := os.Rename(filepath.Join(v.dir, nextVersion), filepath.Join(v.dir, versionFile(one.Number))); err != nil {
		return 0, fmt.Errorf("history of the configuration: %w", err)
	}
	all, err := v.list()
	for _, old := range all[min(mostVersions, len(all)):] {
		err = errors.Join(err, os.Remove(filepath.Join(v.dir, versionFile(old.Number))))
	}
	return one.Number, err
}

// resume finishes what a killed agent began: the prepared version is in force if the
// configuration file says what it does.
func (v versions) resume(text []byte) error {
	one, err := v.read(nextVersion)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && one.Text == string(text) {
		_, err = v.promote()
		return err
	}
	return os.Remove(filepath.Join(v.dir, nextVersion))
}

// record keeps a version that is in force.
func (v versions) record(one api.Version) error {
	if _, err := v.prepare(one); err != nil {
		return err
	}
	_, err := v.promote()
	return err
}

// follow numbers a version after the latest one, and says what differs. ok is false if
// nothing does.
func (v versions) follow(one api.Version, name string) (_ api.Version, ok bool, err error) {
	all, err := v.list()
	if err != nil {
		return one, false, err
	}
	one.Number, one.Changes = 1, []string{}
	former := config.Default()
	if len(all) > 0 {
		last, err := v.read(versionFile(all[0].Number))
		if err != nil {
			return one, false, err
		}
		one.Number = last.Number + 1
		if former, err = config.Parse([]byte(last.Text), name); err != nil {
			return one, true, nil // of another version of Berth: what differs cannot be said
		}
	}
	next, err := config.Parse([]byte(one.Text), name)
	if err != nil {
		return one, false, err
	}
	changes, err := config.Diff(former, next)
	one.Changes = inWords(changes)
	return one, len(changes) > 0 || len(all) == 0, err
}

// inWords are changes, the first of many.
func inWords(changes []config.Change) []string {
	words := []string{}
	for i, c := range changes {
		if i == mostTold {
			return append(words, fmt.Sprintf("and %d more", len(changes)-i))
		}
		words = append(words, c.String())
	}
	return words
}
