package machine

import "fmt"

// kinds is the number of kinds of domain.
const kinds = int(Core) + 1

func kindNames() [kinds]string {
	return [...]string{Socket: "socket", Die: "die", Node: "node", L3: "l3", L2: "l2", Core: "core"}
}

// Kinds returns every kind, from Socket to Core.
func Kinds() []Kind { return []Kind{Socket, Die, Node, L3, L2, Core} }

// String returns the kind's name: "socket", "die", "node", "l3", "l2", "core".
func (k Kind) String() string {
	if k < 0 || int(k) >= kinds {
		return fmt.Sprintf("kind(%d)", int(k))
	}
	return kindNames()[k]
}

// MarshalText writes the kind's name. A number that is no kind is an error.
func (k Kind) MarshalText() ([]byte, error) {
	if k < 0 || int(k) >= kinds {
		return nil, fmt.Errorf("kind %d: no such kind of domain", int(k))
	}
	return []byte(k.String()), nil
}

// UnmarshalText reads a kind's name.
func (k *Kind) UnmarshalText(text []byte) error {
	for i, name := range kindNames() {
		if name == string(text) {
			*k = Kind(i)
			return nil
		}
	}
	return fmt.Errorf("kind %q: no such kind of domain", text)
}
