#include "core/text/xml_writer.hpp"

#include "core/errors.hpp"
#include "core/utf8.hpp"

#include <algorithm>
#include <cstddef>

namespace isobar {

namespace {

/// The text with question marks for bytes that are not UTF-8 and for control characters other than tab and line feed.
std::string allowed_in_xml(std::string_view text)
{
  std::string allowed;
  allowed.reserve(text.size());
  for (std::size_t length = 0; !text.empty(); text.remove_prefix(std::max<std::size_t>(length, 1))) {
    length = utf8_length(text);
    const auto first = static_cast<unsigned char>(text.front());
    const bool is_allowed = length > 1 || (length == 1 && (first >= 0x20 || first == '\t' || first == '\n'));
    if (is_allowed) {
      allowed += text.substr(0, length);
    } else {
      allowed += '?';
    }
  }
  return allowed;
}

std::string comment_text(std::string_view text)
{
  std::string safe = allowed_in_xml(text);
  for (std::size_t at = safe.find("--"); at != std::string::npos; at = safe.find("--", at)) safe.insert(at + 1, 1, ' ');
  return safe;
}

}  // namespace

std::string xml_escaped(std::string_view text)
{
  std::string escaped;
  escaped.reserve(text.size());
  for (const char character : allowed_in_xml(text)) {
    switch (character) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\t':
      case '\n':
        escaped += ' ';
        break;
      default:
        escaped += character;
    }
  }
  return escaped;
}

void XmlWriter::prolog(std::string_view line)
{
  text_ += line;
  end_line();
}

void XmlWriter::comment(std::string_view text)
{
  indent();
  text_ += "<!-- ";
  text_ += comment_text(text);
  text_ += " -->";
  end_line();
}

void XmlWriter::comment(const std::vector<std::string>& lines)
{
  indent();
  text_ += "<!--\n";
  for (const auto& line : lines) {
    if (!line.empty()) {
      indent();
      text_ += "  ";
      text_ += comment_text(line);
    }
    text_ += '\n';
  }
  indent();
  text_ += "-->";
  end_line();
}

void XmlWriter::element(std::string_view name, Attributes attributes)
{
  begin_tag(name, attributes);
  text_ += "/>";
  end_line();
}

void XmlWriter::open(std::string_view name, Attributes attributes, Layout layout)
{
  begin_tag(name, attributes);
  text_ += '>';
  // What is inside an element on one line stays on that line.
  open_.push_back({std::string(name), on_same_line() ? Layout::SameLine : layout});
  end_line();
}

void XmlWriter::close()
{
  ensure(!open_.empty(), "an XML end tag without a start tag");
  const OpenElement closed = std::move(open_.back());
  open_.pop_back();
  if (closed.layout == Layout::OwnLines) indent();
  text_ += "</";
  text_ += closed.name;
  text_ += '>';
  end_line();
}

std::string XmlWriter::finished() &&
{
  ensure(open_.empty(), "an XML element that is not closed");
  return std::move(text_);
}

void XmlWriter::indent()
{
  if (!on_same_line()) text_.append(2 * open_.size(), ' ');
}

void XmlWriter::end_line()
{
  if (!on_same_line()) text_ += '\n';
}

void XmlWriter::begin_tag(std::string_view name, Attributes attributes)
{
  indent();
  text_ += '<';
  text_ += name;
  for (const auto& [attribute, value] : attributes) {
    text_ += ' ';
    text_ += attribute;
    text_ += "=\"";
    text_ += xml_escaped(value);
    text_ += '"';
  }
}

}  // namespace isobar
