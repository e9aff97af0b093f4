#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar {

/// Text for an attribute value, in double quotes, of XML or HTML: `&`, `<`, `>` and `"` as entities, tabs and line
/// breaks as spaces (as parsers read them there). Other control characters and bytes that are not UTF-8, which XML
/// cannot hold, become question marks.
std::string xml_escaped(std::string_view text);

/// Writes an XML document, one tag per line, indented by two spaces per level.
///
/// Attribute values are escaped. Names of elements and attributes are not checked; they must be XML names.
class XmlWriter {
 public:
  /// Names and values, in the order in which they are written.
  using Attributes = std::initializer_list<std::pair<std::string_view, std::string>>;

  /// Where the children and the end tag of an element go.
  enum class Layout { OwnLines, SameLine };

  /// Appends a line of the prolog unchanged: the XML declaration or a DOCTYPE.
  void prolog(std::string_view line);
  /// Appends a comment of one line. Two hyphens in a row, which would end it, get a space between them.
  void comment(std::string_view text);
  /// Appends a comment of several lines, whose delimiters stand on lines of their own.
  void comment(const std::vector<std::string>& lines);
  /// Appends an element without content.
  void element(std::string_view name, Attributes attributes = {});
  /// Appends a start tag; what follows is its content until `close`.
  void open(std::string_view name, Attributes attributes = {}, Layout layout = Layout::OwnLines);
  /// Appends the end tag of the element that was opened last. @throws std::logic_error when none is open.
  void close();
  /// Returns the document. @throws std::logic_error when an element is still open.
  std::string finished() &&;

 private:
  struct OpenElement {
    std::string name;
    Layout layout;
  };

  bool on_same_line() const { return !open_.empty() && open_.back().layout == Layout::SameLine; }
  void indent();
  void end_line();
  void begin_tag(std::string_view name, Attributes attributes);

  std::string text_;
  std::vector<OpenElement> open_;
};

}  // namespace isobar
