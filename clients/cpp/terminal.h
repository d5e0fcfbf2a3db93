// Text from a server or a file, for a terminal: a terminal obeys control characters, so that text
// could change its title, its colours, the order of its letters or what a person believes to have
// typed.
#pragma once

#include <string>
#include <string_view>

namespace polysketch {

// Returns `text` with escapes in place of control characters (C0, DEL and C1) other than newline
// and tab, of bidirectional controls and of the separators of lines and paragraphs: U+001B becomes
// \u001b, U+202E \u202e, which JSON reads back. A byte that is not UTF-8 becomes \x9b.
std::string EscapeControls(std::string_view text);

// Returns the text to write to a file descriptor: EscapeControls(text) for a terminal, otherwise
// `text`.
std::string TerminalText(int fd, std::string_view text);

}  // namespace polysketch
