package place

// Derived returns the result of derive on the machine, such as a policy's own index
// of it. Derived calls derive once for each type and keeps the value as long as t. T
// is a type of the caller's own. The value must not be changed. Derived is safe for concurrent use;
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
