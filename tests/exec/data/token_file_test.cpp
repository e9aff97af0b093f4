#include "exec/data/token_file.hpp"

#include "core/errors.hpp"
#include "exec/data/foreign_format.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec::token_file_test {
namespace {

using testing::ElementsAre;
using testing_support::TemporaryFolder;

/// Little-endian bytes.
template <typename Number>
std::string bytes_of(const std::vector<Number>& numbers)
{
  std::string bytes;
  for (const Number number : numbers) {
    for (std::size_t i = 0; i < sizeof(Number); ++i) {
      bytes += static_cast<char>(static_cast<std::uint64_t>(number) >> (8 * i) & 0xFFU);
    }
  }
  return bytes;
}

/// A file as numpy.save writes it.
std::string npy_of(const std::string& header, const std::string& data)
{
  return "\x93NUMPY" + std::string("\x01\x00", 2) +
         bytes_of<std::uint16_t>({static_cast<std::uint16_t>(header.size())}) + header + data;
}

std::string npy_header(const std::string& type, const std::string& shape)
{
  return fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}       \n", type, shape);
}

std::string llm_c_of(std::uint32_t magic, std::uint32_t version, std::uint32_t count, const std::string& data)
{
  std::vector<std::uint32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of(header) + data;
}

class TokenFiles : public testing::Test {
 protected:
  std::vector<std::int64_t> tokens_of(const std::string& content, std::optional<TokenType> type = {})
  {
    const TokenFile file(folder_.write("tokens", content), vocabulary_, type);
    return file.read(0, file.size());
  }
  std::string fault_of(const std::string& content, std::optional<TokenType> type = {})
  {
    const std::filesystem::path file = folder_.write("tokens", content);
    try {
      const TokenFile tokens(file, vocabulary_, type);
      tokens.read(0, tokens.size());
    } catch (const InputError& fault) {
      const std::string what = fault.what();
      EXPECT_TRUE(what.starts_with(file.string() + ": ")) << what;
      return what.substr(std::min(what.size(), file.string().size() + 2));
    }
    return "none";
  }

  TemporaryFolder folder_;
  std::uint64_t vocabulary_ = 65'536;
};

/// For numbers above 65,535.
class LargeTokenFiles : public TokenFiles {
 protected:
  LargeTokenFiles() { vocabulary_ = 100'000; }
};

const std::string three_tokens = bytes_of<std::uint16_t>({7, 0, 65535});

TEST_F(TokenFiles, OfNanoGptAreReadFromTheFirstByte)
{
  EXPECT_THAT(tokens_of(three_tokens), ElementsAre(7, 0, 65535));
}

TEST_F(LargeTokenFiles, OfLlmCAreReadAfterTheirHeader)
{
  EXPECT_THAT(tokens_of(llm_c_of(20240520, 1, 3, three_tokens)), ElementsAre(7, 0, 65535));
  EXPECT_THAT(tokens_of(llm_c_of(20240801, 7, 2, bytes_of<std::uint32_t>({99'999, 1}))), ElementsAre(99'999, 1));
}

TEST_F(LargeTokenFiles, OfNumPyAreReadInEachType)
{
  EXPECT_THAT(tokens_of(npy_of(npy_header("<u2", "3,"), three_tokens)), ElementsAre(7, 0, 65535));
  EXPECT_THAT(tokens_of(npy_of(npy_header("<u4", "2,"), bytes_of<std::uint32_t>({99'999, 1}))), ElementsAre(99'999, 1));
  EXPECT_THAT(tokens_of(npy_of(npy_header("<i4", "2,"), bytes_of<std::int32_t>({99'999, 1}))), ElementsAre(99'999, 1));
  EXPECT_THAT(tokens_of(npy_of(npy_header("<i8", "2,"), bytes_of<std::int64_t>({99'999, 1}))), ElementsAre(99'999, 1));
}

TEST_F(TokenFiles, OfNumPyMayNameTheirMembersInAnyOrder)
{
  const std::string header = "{\"shape\":(3,),'fortran_order': False,'descr':'<u2'}";
  EXPECT_EQ(fault_of(npy_of(header, three_tokens)), "its NumPy header is damaged") << "NumPy writes no double quotes";
  EXPECT_THAT(tokens_of(npy_of("{'shape': (3,), 'fortran_order': False, 'descr': '<u2'}", three_tokens)),
              ElementsAre(7, 0, 65535));
}

TEST_F(TokenFiles, AreReadAWindowAtATime)
{
  const TokenFile file(folder_.write("tokens", llm_c_of(20240520, 1, 3, three_tokens)), 65536);
  EXPECT_EQ(file.size(), 3U);
  EXPECT_THAT(file.read(1, 2), ElementsAre(0, 65535));
  EXPECT_THAT(file.read(3, 0), ElementsAre());
  EXPECT_THROW(file.read(2, 2), std::logic_error);
  EXPECT_THROW(file.read(~std::uint64_t{0}, 2), std::logic_error);
}

TEST_F(LargeTokenFiles, AreRefusedWithTokensThatAreNotInTheVocabulary)
{
  const auto path = folder_.write("tokens", three_tokens);
  const TokenFile file(path, 65535);
  EXPECT_THAT(file.read(0, 2), ElementsAre(7, 0));
  EXPECT_THAT([&] { file.read(1, 2); },
              testing::ThrowsMessage<InputError>(path.string() + ": token 2 is 65535; the vocabulary has 0 to 65534"));
  EXPECT_EQ(fault_of(npy_of(npy_header("<i4", "2,"), bytes_of<std::int32_t>({5, -1}))),
            "token 1 is -1; the vocabulary has 0 to 99999");
  EXPECT_EQ(fault_of(npy_of(npy_header("<i8", "1,"), bytes_of<std::int64_t>({INT64_MIN}))),
            "token 0 is -9223372036854775808; the vocabulary has 0 to 99999");
  EXPECT_EQ(fault_of(npy_of(npy_header("<u4", "1,"), bytes_of<std::uint32_t>({4'294'967'295}))),
            "token 0 is 4294967295; the vocabulary has 0 to 99999");
}

TEST_F(TokenFiles, AreRefusedWhenTheyAreTruncated)
{
  EXPECT_EQ(fault_of(""), "has no tokens");
  EXPECT_EQ(fault_of("\x01\x02\x03"), "has 3 bytes of tokens, not a multiple of 2; is it truncated?");
  const std::string llm_c = llm_c_of(20240520, 1, 3, three_tokens);
  EXPECT_EQ(fault_of(llm_c.substr(0, 1000)), "ends after 1000 bytes, within llm.c's header");
  EXPECT_EQ(fault_of(llm_c.substr(0, llm_c.size() - 2)), "its header says 3 tokens, but it has 2; is it truncated?");
  EXPECT_EQ(fault_of(llm_c.substr(0, llm_c.size() - 1)),
            "has 5 bytes of tokens, not a multiple of 2; is it truncated?");
  EXPECT_EQ(fault_of(llm_c_of(20240520, 1, 0, "")), "has no tokens");
  EXPECT_EQ(fault_of(npy_of(npy_header("<u2", "4,"), three_tokens)),
            "its header says 4 tokens, but it has 3; is it truncated?");
}

TEST_F(TokenFiles, OfOtherVersionsAreRefused)
{
  EXPECT_EQ(fault_of(llm_c_of(20240520, 2, 3, three_tokens)), "has llm.c version 2; only version 1 can be read");
  EXPECT_EQ(fault_of(llm_c_of(20240801, 1, 3, three_tokens)), "has llm.c version 1; only version 7 can be read");
}

TEST_F(TokenFiles, OfNumPyHoldOneRowOfWholeNumbers)
{
  EXPECT_EQ(fault_of(npy_of(npy_header(">u2", "3,"), three_tokens)),
            R"(holds ">u2"; tokens must be <u2, <u4, <i4 or <i8)");
  EXPECT_EQ(fault_of(npy_of(npy_header("<f4", "3,"), three_tokens)),
            R"(holds "<f4"; tokens must be <u2, <u4, <i4 or <i8)");
  EXPECT_EQ(fault_of(npy_of(npy_header("<u2", "1, 3"), three_tokens)),
            "holds an array of shape (1, 3); tokens must be a one-dimensional array in C order");
  EXPECT_EQ(fault_of(npy_of(npy_header("<u2", ""), three_tokens)),
            "holds an array of shape (); tokens must be a one-dimensional array in C order");
  EXPECT_EQ(fault_of(npy_of(npy_header("<u2", "99999999999999999999,"), three_tokens)),
            "holds an array of shape (99999999999999999999,); tokens must be a one-dimensional array in C order");
  EXPECT_EQ(fault_of(npy_of("{'descr': '<u2', 'fortran_order': True, 'shape': (3,), }", three_tokens)),
            "holds an array of shape (3,) in Fortran order; tokens must be a one-dimensional array in C order");
}

TEST_F(TokenFiles, WithDamagedNumPyHeadersAreRefused)
{
  const std::string damaged = "its NumPy header is damaged";
  for (const std::string header :
       {"", "{", "}", "{}", "{'descr'", "{'descr': '<u2", "{'descr': '<u2'", "{'descr': '<u2' 'shape': (3,)}",
        "{'descr': '<u2', 'fortran_order': Maybe, 'shape': (3,)}", "{'descr': '<u2', 'more': 1}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (3,)} and more", "{'shape': (3,)}", "[{'descr': '<u2'}]"}) {
    EXPECT_EQ(fault_of(npy_of(header, three_tokens)), damaged) << header;
  }
  const std::string good = npy_of(npy_header("<u2", "3,"), three_tokens);
  for (std::size_t length = 6; length < good.size(); ++length) {
    EXPECT_NE(fault_of(good.substr(0, length)), "none") << length;
  }
  std::string of_version_4 = good;
  of_version_4[6] = 4;
  EXPECT_EQ(fault_of(of_version_4), damaged);
  std::string with_long_header = good;
  with_long_header[6] = 2;
  EXPECT_EQ(fault_of(with_long_header), damaged);
}

std::string refusal_of(const std::string& format)
{
  return "is " + format +
         ", not numbers of tokens; make a .bin or .npy file of it, or give --data-type if these bytes are numbers";
}

TEST_F(TokenFiles, AreRefusedWhenTheyAreText)
{
  const std::string cut_in_a_character = std::string(foreign_format_bytes - 1, 'x') + "\u00E4 is cut here";
  for (const std::string text :
       {"a", "First Citizen:\nBefore we proceed any further, hear me speak.\n", "{\"text\": \"a line of JSON\"}\r\n",
        "1,2,3\n4,5,6\n", "\xEF\xBB\xBF\xC3\xA4\xE2\x82\xAC", cut_in_a_character.c_str()}) {
    EXPECT_EQ(fault_of(text), refusal_of("text")) << text;
  }
  EXPECT_EQ(fault_of("\xC3\xA4\xC3\x04"), "none");
  EXPECT_EQ(fault_of("\xC8\xFE"), "none") << "65,224";
  EXPECT_EQ(fault_of("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"),
            "is a pointer of git-lfs, not the file itself; fetch the file with: git lfs pull");
}

TEST_F(TokenFiles, AreRefusedWhenTheyHaveAKnownFormat)
{
  using namespace std::string_literals;
  const std::string rest = three_tokens + three_tokens;
  EXPECT_EQ(fault_of("PAR1" + rest), refusal_of("a Parquet file"));
  EXPECT_EQ(fault_of("PK\x03\x04" + rest), refusal_of("a zip archive, such as an .npz or a .pt"));
  EXPECT_EQ(fault_of("\x1F\x8B\x08\x00" + rest), refusal_of("compressed by gzip"));
  EXPECT_EQ(fault_of("\x28\xB5\x2F\xFD" + rest), refusal_of("compressed by zstd"));
  EXPECT_EQ(fault_of("\xFD\x37zXZ\x00"s + rest), refusal_of("compressed by xz"));
  EXPECT_EQ(fault_of("BZh9" + rest), refusal_of("compressed by bzip2"));
  EXPECT_EQ(fault_of("\x04\x22\x4D\x18" + rest), refusal_of("compressed by lz4"));
  EXPECT_EQ(fault_of("ARROW1\x00\x00"s + rest), refusal_of("an Arrow file"));
  EXPECT_EQ(fault_of("\xFF\xFF\xFF\xFF" + rest), refusal_of("a stream of Arrow"));
  EXPECT_EQ(fault_of("\x89HDF\r\n\x1A\n" + rest), refusal_of("an HDF5 file"));
  EXPECT_EQ(fault_of("SQLite format 3\x00"s + rest), refusal_of("an SQLite database"));
  EXPECT_EQ(fault_of("MMIDIDX\x00\x00\x01"s + rest),
            refusal_of("the index of a Megatron-LM data set, whose tokens are in the .bin file"));
  EXPECT_EQ(fault_of("\x28\x00\x00\x00\x00\x00\x00\x00{\"a\": {}}"s + rest), refusal_of("a safetensors file"));
}

TEST_F(TokenFiles, AreRefusedWithTheHeaderOfAnotherFileOfLlmC)
{
  for (const auto& [magic, format] :
       {std::pair(20240326U, "a model"), std::pair(20240327U, "a reference state"), std::pair(20240328U, "a tokenizer"),
        std::pair(20240522U, "an evaluation"), std::pair(20240527U, "a state"), std::pair(20240803U, "a model")}) {
    EXPECT_EQ(fault_of(llm_c_of(magic, 1, 3, three_tokens)),
              refusal_of(fmt::format("{} of llm.c (magic {})", format, magic)));
  }
}

TEST_F(TokenFiles, AreRefusedWhenTheirNumbersAreWiderThanTheDefault)
{
  EXPECT_EQ(
      fault_of(bytes_of<std::uint32_t>({5, 50'256, 0, 17})),
      "looks like uint32, since every second uint16 is 0; give --data-type uint32, or --data-type uint16 if that is "
      "right");
  EXPECT_EQ(
      fault_of(bytes_of<std::int64_t>({5, 50'256})),
      "looks like int64, since every second uint16 is 0; give --data-type int64, or --data-type uint16 if that is "
      "right");
  EXPECT_EQ(fault_of(bytes_of<std::uint16_t>({0, 0, 0, 0, 0, 0, 0, 0})), "none");
  EXPECT_EQ(fault_of(bytes_of<std::uint16_t>({5, 0, 6, 0, 7, 0, 8, 9})), "none");
  EXPECT_EQ(fault_of(bytes_of<std::uint16_t>({5, 0, 6, 0})), "none") << "four tokens show nothing";
}

TEST_F(LargeTokenFiles, NeedATypeOrAHeaderSince16BitsAreTooFew)
{
  EXPECT_EQ(
      fault_of(bytes_of<std::uint32_t>({5, 99'999})),
      "has no header, and uint16 has fewer numbers than the vocabulary of 100000; give --data-type, such as uint32");
  vocabulary_ = 65'537;
  EXPECT_NE(fault_of(three_tokens), "none");
  vocabulary_ = 65'536;
  EXPECT_EQ(fault_of(three_tokens), "none");
}

TEST_F(LargeTokenFiles, WithoutAHeaderAreReadInTheTypeThatIsGiven)
{
  EXPECT_THAT(tokens_of(three_tokens, TokenType::Uint16), ElementsAre(7, 0, 65535));
  EXPECT_THAT(tokens_of(bytes_of<std::uint32_t>({5, 99'999}), TokenType::Uint32), ElementsAre(5, 99'999));
  EXPECT_THAT(tokens_of(bytes_of<std::int32_t>({5, 99'999}), TokenType::Int32), ElementsAre(5, 99'999));
  EXPECT_THAT(tokens_of(bytes_of<std::int64_t>({5, 99'999}), TokenType::Int64), ElementsAre(5, 99'999));
  EXPECT_THAT(tokens_of("abcd", TokenType::Uint16), ElementsAre(0x6261, 0x6463));
  EXPECT_EQ(fault_of(bytes_of<std::int32_t>({5, -1}), TokenType::Int32),
            "token 1 is -1; the vocabulary has 0 to 99999");
  EXPECT_EQ(fault_of(three_tokens, TokenType::Uint32), "has 6 bytes of tokens, not a multiple of 4; is it truncated?");
}

TEST_F(TokenFiles, WithAHeaderHaveTheTypeThatItNames)
{
  const std::string npy = npy_of(npy_header("<u2", "3,"), three_tokens);
  EXPECT_THAT(tokens_of(npy, TokenType::Uint16), ElementsAre(7, 0, 65535));
  EXPECT_EQ(fault_of(npy, TokenType::Int64), "has uint16 by its header, not int64; leave --data-type out");
  EXPECT_EQ(fault_of(llm_c_of(20240801, 7, 1, bytes_of<std::uint32_t>({1})), TokenType::Uint16),
            "has uint32 by its header, not uint16; leave --data-type out");
}

TEST_F(TokenFiles, ThatDoNotExistAreRefused)
{
  EXPECT_THAT([] { TokenFile("no/such/file.bin", 10); },
              testing::ThrowsMessage<InputError>("no/such/file.bin: no such file"));
  EXPECT_THAT([] { TokenFile("/dev/null", 10); },
              testing::ThrowsMessage<InputError>("/dev/null: is not a regular file; tokens are read at any offset"));
  EXPECT_THAT([&] { TokenFile(folder_.path(), 10); },
              testing::ThrowsMessage<InputError>(testing::HasSubstr("is not a regular file")));
}

TEST_F(TokenFiles, ThatBecomeShorterAreReported)
{
  const auto path = folder_.write("tokens", three_tokens);
  const TokenFile file(path, 65536);
  std::filesystem::resize_file(path, 3);
  EXPECT_THAT([&] { file.read(0, 3); },
              testing::ThrowsMessage<EnvironmentError>(path.string() + ": became shorter while it was in use"));
}

}  // namespace
}  // namespace isobar::exec::token_file_test
