package place

// Derived returns what derive makes of the machine, such as a policy's own index
// of it. It is made once for each type and kept as long as t. T is a type of the
// caller's own, and nobody changes the value. Derived is safe for concurrent use;
// derive may then run more than once, and all callers get the same value.
func Derived[T any](t *Topology, derive func(*Topology) T) *T {
	key := (*T)(nil)
	if kept, ok := t.derived.Load(key); ok {
		return kept.(*T)
	}
	value := derive(t)
	kept, _ := t.derived.LoadOrStore(key, &value)
	return kept.(*T)
}
