package guard

import "berth.dev/berth/guard/observe"

// Host has the sensors of a live host. It must be closed.
type Host = observe.Observer

// OpenHost opens the signals of the host below a root directory, "" for "/".
func OpenHost(root string) (*Host, error) {
	host, err := observe.Open(observe.Config{Root: root})
	if err != nil {
		return nil, err
	}
	return host, host.Closely(nil) // until it is known which groups are looked after
}

var _ Sensors = (*Host)(nil)
