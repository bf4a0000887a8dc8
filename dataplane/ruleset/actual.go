package ruleset

// Actual is the table in the kernel. Rules are known by their IDs, which are stored with them: an edited rule has none.
type Actual struct {
	Chains map[string]ActualChain
	Sets   map[string]ActualSet
	Maps   map[string]map[string]Verdict
}

// NewActual makes an empty table.
func NewActual() *Actual {
	return &Actual{Chains: map[string]ActualChain{}, Sets: map[string]ActualSet{},
		Maps: map[string]map[string]Verdict{}}
}

// ActualChain is a chain in the kernel.
type ActualChain struct {
	Base  *Base    // nil for a chain that others jump to
	Rules []string // IDs in order, empty for a rule that has none: another program's
}

// ActualSet is a set in the kernel.
type ActualSet struct {
	Set
	Elements []Element
}
