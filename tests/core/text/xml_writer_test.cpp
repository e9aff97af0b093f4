#include "core/text/xml_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace isobar::xml_writer_test {
namespace {

using testing::ThrowsMessage;

TEST(XmlEscaped, WritesTheCharactersOfMarkupAsEntities)
{
  EXPECT_EQ(xml_escaped("a & b < \"c\" > 'd'"), "a &amp; b &lt; &quot;c&quot; &gt; 'd'");
  EXPECT_EQ(xml_escaped("&amp;"), "&amp;amp;");
  EXPECT_EQ(xml_escaped(""), "");
}

TEST(XmlEscaped, KeepsTextBeyondAscii)
{
  EXPECT_EQ(xml_escaped("Zürich × 東京 😀"), "Zürich × 東京 😀");
}

TEST(XmlEscaped, ReplacesWhatXmlCannotHold)
{
  EXPECT_EQ(xml_escaped("one\ttwo\nthree"), "one two three");
  EXPECT_EQ(xml_escaped(std::string_view("a\0b\x1b[31m\r", 9)), "a?b?[31m?");
  EXPECT_EQ(xml_escaped("caf\xE9, \xC3"), "caf?, ?");
}

TEST(XmlWriter, IndentsChildrenBelowTheirParent)
{
  XmlWriter xml;
  xml.prolog("<?xml version=\"1.0\"?>");
  xml.open("platform", {{"version", "4.1"}});
  xml.open("host", {{"id", "a"}, {"speed", "1Tf"}});
  xml.element("prop", {{"id", "memory"}, {"value", "1 GiB"}});
  xml.close();
  xml.element("router");
  xml.close();
  EXPECT_EQ(std::move(xml).finished(),
            "<?xml version=\"1.0\"?>\n"
            "<platform version=\"4.1\">\n"
            "  <host id=\"a\" speed=\"1Tf\">\n"
            "    <prop id=\"memory\" value=\"1 GiB\"/>\n"
            "  </host>\n"
            "  <router/>\n"
            "</platform>\n");
}

TEST(XmlWriter, KeepsAnElementOnOneLineWhenAsked)
{
  XmlWriter xml;
  xml.open("zone");
  xml.open("route", {{"src", "a"}}, XmlWriter::Layout::SameLine);
  xml.element("link_ctn", {{"id", "l"}});
  xml.open("nested");
  xml.comment("inside");
  xml.close();
  xml.close();
  xml.element("router");
  xml.close();
  EXPECT_EQ(std::move(xml).finished(),
            "<zone>\n"
            "  <route src=\"a\"><link_ctn id=\"l\"/><nested><!-- inside --></nested></route>\n"
            "  <router/>\n"
            "</zone>\n");
}

TEST(XmlWriter, EscapesAttributeValues)
{
  XmlWriter xml;
  xml.element("prop", {{"value", "\"a\" < b & c"}});
  EXPECT_EQ(std::move(xml).finished(), "<prop value=\"&quot;a&quot; &lt; b &amp; c\"/>\n");
}

TEST(XmlWriter, LetsNoCommentEndEarly)
{
  XmlWriter xml;
  xml.comment("made --> up---");
  xml.open("platform");
  xml.comment(std::vector<std::string>{"isobar --flows 4", "", "a < b & c"});
  xml.close();
  EXPECT_EQ(std::move(xml).finished(),
            "<!-- made - -> up- - - -->\n"
            "<platform>\n"
            "  <!--\n"
            "    isobar - -flows 4\n"
            "\n"
            "    a < b & c\n"
            "  -->\n"
            "</platform>\n");
}

TEST(XmlWriter, RefusesTagsThatDoNotMatch)
{
  EXPECT_THAT([] { XmlWriter().close(); }, ThrowsMessage<std::logic_error>("an XML end tag without a start tag"));
  EXPECT_THAT(
      [] {
        XmlWriter xml;
        xml.open("platform");
        std::move(xml).finished();
      },
      ThrowsMessage<std::logic_error>("an XML element that is not closed"));
}

}  // namespace
}  // namespace isobar::xml_writer_test
