package selector

// Selector is a parsed selector. It is immutable and safe for concurrent use.
type Selector struct {
	root Node
	text string
}

// Parse parses a selector. The empty text selects everything, as all() does. The error names the position of the first
// mistake.
func Parse(text string) (*Selector, error) {
	root, err := parse(text)
	if err != nil {
		return nil, err
	}
	return New(root), nil
}

// New returns a Selector with this root, for instance of rewritten parts.
func New(root Node) *Selector {
	return &Selector{root: root, text: canonical(root)}
}

// Root returns the root of the parsed selector. It must not be changed.
func (s *Selector) Root() Node { return s.root }

// Matches evaluates the selector for an object with these labels.
func (s *Selector) Matches(labels map[string]string) bool { return s.root.Matches(Map(labels)) }

// MatchesLabels is Matches for labels that are not in one map.
func (s *Selector) MatchesLabels(labels Labels) bool { return s.root.Matches(labels) }

// String returns the canonical text, which is equal for selectors that parse to the same.
func (s *Selector) String() string { return s.text }
