package ruleset

// FullTable has every feature of a table, for tests of other packages. Left out are parts that nft lists in another way
// when it loaded the text: no condition and no effect, a network of all addresses, quotes in quotes, long comments.
func FullTable() *Table { return fullTable("continue", "0.0.0.0/0", "it's", " # ") }
