#include "exec/files/safetensors.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "exec/files/crc32c.hpp"
#include "exec/files/weight_files.hpp"
#include "tests/exec/files/stored_tensors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <sys/mount.h>
#include <unistd.h>
#include <array>
#include <filesystem>
#include <string>
#include <vector>

namespace isobar::exec::safetensors_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::TemporaryFolder;

/// A file with this header, valid or not, and `elements` bytes after it.
std::string file_of(const std::string& header, std::size_t elements)
{
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return text + header + std::string(elements, 'x');
}

void expect_refusal(const std::string& content, const std::string& message)
{
  const TemporaryFolder folder;
  const auto file = folder.write("bad.safetensors", content);
  EXPECT_THAT([&] { SafetensorsFile{file}; },
              ThrowsMessage<InputError>(AllOf(HasSubstr("bad.safetensors"), HasSubstr(message))))
      << shown(content, 200);
}

TEST(Crc32c, IsThatOfItsDefinition)
{
  // RFC 3720, B.4: 32 bytes of zeros, of ones, and ascending.
  std::array<std::byte, 32> bytes{};
  EXPECT_EQ(crc32c(bytes), 0x8a9136aaU);
  bytes.fill(std::byte{0xff});
  EXPECT_EQ(crc32c(bytes), 0x62a8ab43U);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(bytes), 0x46dd794eU);
  EXPECT_EQ(crc32c({}), 0U);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::span all(bytes);
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), 0x46dd794eU) << cut;
  }
}

TEST(Safetensors, AreWrittenAsTheReferenceWritesThem)
{
  const TemporaryFolder folder;
  const std::vector tensors = {tensor_of("b", {2}, {1, 2}), tensor_of("a", {}, {3}),
                               tensor_of_bytes({"long", ElementType::I64, {1}}, 0),
                               tensor_of_bytes({"byte", ElementType::U8, {3, 1}}, 0)};
  const auto written = write_safetensors(folder.path() / "some.safetensors", views_of(tensors), {{"format", "pt"}});
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"long":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[8,12]},"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},)"
      R"("byte":{"dtype":"U8","shape":[3,1],"data_offsets":[20,23]}})";
  const auto content = read_file(folder.path() / "some.safetensors");
  const auto padded = (header.size() + 7) / 8 * 8;
  EXPECT_EQ(content.substr(8, padded), header + std::string(padded - header.size(), ' '));
  EXPECT_EQ(content.substr(8 + padded, 8), std::string("\0\1\2\3\4\5\6\7", 8));
  EXPECT_EQ(content.size(), 8 + padded + 23);
  EXPECT_EQ(written.size, content.size());
  EXPECT_EQ(written.crc, crc32c(std::as_bytes(std::span(content))));
  EXPECT_EQ(written.tensor_crc.at("b"), crc32c(tensors[0].data));
}

RC_GTEST_PROP(Safetensors, SurviveWriteThenRead, ())
{
  std::vector<StoredTensor> tensors;
  Metadata metadata;
  const auto names = *rc::gen::unique<std::vector<std::string>>(rc::gen::string<std::string>());
  for (const auto& raw : names) {
    // Any text is a valid name, including quotes and line breaks.
    std::string name;
    for (const char character : raw) name += static_cast<char>(character & 0x7f);
    const TensorFacts facts{fmt::format("{}:{}", name, tensors.size()),
                            static_cast<ElementType>(*rc::gen::inRange(0, 15)),
                            *rc::gen::container<std::vector<std::uint64_t>>(*rc::gen::inRange(0, 4),
                                                                            rc::gen::inRange<std::uint64_t>(0, 5))};
    tensors.push_back(tensor_of_bytes(facts, *rc::gen::arbitrary<std::uint8_t>()));
    if (*rc::gen::arbitrary<bool>()) metadata[facts.name] = name;
  }
  const TemporaryFolder folder;
  const auto path = folder.path() / "some.safetensors";
  write_safetensors(path, views_of(tensors), metadata);
  const SafetensorsFile file(path);
  RC_ASSERT(file.names().size() == tensors.size());
  RC_ASSERT(file.metadata() == metadata);
  RC_ASSERT(file.size() == std::filesystem::file_size(path));
  for (const auto& tensor : tensors) {
    const auto read = file.read(tensor.facts.name);
    RC_ASSERT(read.facts.type == tensor.facts.type);
    RC_ASSERT(read.facts.shape == tensor.facts.shape);
    RC_ASSERT(read.data == tensor.data);
  }
}

RC_GTEST_PROP(Safetensors, AreReadOrRefusedWhicheverByteIsWrong, ())
{
  const TemporaryFolder folder;
  const auto path = folder.path() / "some.safetensors";
  write_safetensors(path, views_of({tensor_of("a", {2, 2}, {1, 2, 3, 4}), tensor_of("b", {1}, {5})}), {{"k", "v"}});
  auto content = read_file(path);
  content[*rc::gen::inRange<std::size_t>(0, content.size())] = *rc::gen::arbitrary<char>();
  content.resize(*rc::gen::inRange<std::size_t>(0, content.size() + 2), 'x');
  folder.write("some.safetensors", content);
  try {
    const SafetensorsFile file(path);
    for (const auto& name : file.names()) file.read(name);
  } catch (const InputError&) {
  }
}

TEST(Safetensors, AreReadAtTheOffsetsInTheirHeader)
{
  const TemporaryFolder folder;
  const auto path = folder.write(
      "some.safetensors", file_of(R"({"late":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"none":{"dtype":"F64",)"
                                  R"("shape":[4,0],"data_offsets":[1,1]},"early":{"dtype":"BOOL","shape":[1,1,1],)"
                                  R"("data_offsets":[0,1]}}   )",
                                  0) +
                              "abc");
  const SafetensorsFile file(path);
  EXPECT_THAT(file.names(), ElementsAre("early", "late", "none"));
  EXPECT_THAT(file.read("late").data, ElementsAre(std::byte{'b'}, std::byte{'c'}));
  EXPECT_TRUE(file.read("none").data.empty());
  EXPECT_EQ(file.find("other"), nullptr);
  EXPECT_THAT([&] { file.read("other\n"); }, ThrowsMessage<InputError>(HasSubstr(R"(has no tensor "other\x0a")")));
}

TEST(Safetensors, AreRefusedForAFaultOfTheirHeader)
{
  expect_refusal("", "has 0 bytes");
  expect_refusal("1234567", "has 7 bytes; a safetensors file begins with the length of its header, in 8 bytes");
  expect_refusal(std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8), "18446744073709551615 bytes");
  expect_refusal(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}",
                 "100000001 bytes; that of a safetensors file has at most 100000000");
  expect_refusal(file_of("{}", 0).substr(0, 9), "its header has 2 bytes, but the file has 1; it is truncated");
  expect_refusal(file_of("", 0), "not a JSON object");
  expect_refusal(file_of("[]", 0), "not a JSON object");
  expect_refusal(file_of(" {}", 0), "not a JSON object");
  expect_refusal(file_of("{", 0), "not JSON");
  expect_refusal(file_of("{}}", 0), "not JSON");
  expect_refusal(file_of(std::string("{}\0", 3), 0), "control character");
  expect_refusal(file_of("{\"\xff\":1}", 0), "not JSON");
  expect_refusal(file_of(R"({"a":)" + std::string(70, '['), 0), "nested deeper");
  expect_refusal(file_of("{}", 1), "its tensors take 0 bytes, but the file has 1; data was appended");
}

std::string tensor_header(const std::string& name, const std::string& shape, const std::string& offsets,
                          const std::string& type = "U8")
{
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, type, shape, offsets);
}

TEST(Safetensors, AreRefusedForAFaultOfATensor)
{
  const auto refuse = [](const std::string& tensors, std::size_t elements, const std::string& message) {
    expect_refusal(file_of("{" + tensors + "}", elements), message);
  };
  refuse(tensor_header("a", "[2]", "[0,2]") + "," + tensor_header("a", "[2]", "[2,4]"), 4, "a: given twice");
  refuse(R"("a":3)", 0, "a: is a single value");
  refuse(R"("a":{})", 0, "a.dtype: missing");
  refuse(R"("a":{"dtype":"U8","shape":[1]})", 1, "a.data_offsets: missing");
  refuse(tensor_header("a", "[1]", "[0,1],\"more\":1"), 1, "a.more: unknown key");
  refuse(tensor_header("a", "[1]", "[0,1]", "u8"), 1, R"(a.dtype: "u8" is not one of BOOL, U8)");
  refuse(tensor_header("a", "1", "[0,1]"), 1, "a.shape: is a single value; write a list");
  refuse(tensor_header("a", "[-1]", "[0,1]"), 1, R"(a.shape: "-1" is not a whole number)");
  refuse(tensor_header("a", "[1.0]", "[0,1]"), 1, R"(a.shape: "1.0" is not a whole number)");
  refuse(tensor_header("a", R"(["1"])", "[0,1]"), 1, R"(a.shape: "1" is not a whole number)");
  refuse(tensor_header("a", "[[1]]", "[0,1]"), 1, "a.shape: \"\" is not a whole number");
  refuse(tensor_header("a", "[99999999999999999999]", "[0,1]"), 1, "is not a whole number from 0 to 9007199254740992");
  refuse(tensor_header("a", "[4294967296,4294967296]", "[0,1]"), 1,
         "a.data_offsets: 0 to 1 does not fit the more than 2^63 bytes");
  refuse(tensor_header("a", "[2]", "[0,1]"), 1, "a.data_offsets: 0 to 1 does not fit the 2 bytes of [2] U8");
  refuse(tensor_header("a", "[1]", "[1,0]"), 1, "a.data_offsets: 1 to 0 does not fit the 1 bytes");
  refuse(tensor_header("a", "[1]", "[0]"), 1, "not a list of two whole numbers");
  refuse(tensor_header("a", "[1]", "[0,1,2]"), 1, "not a list of two whole numbers");
  refuse(tensor_header("a", "[1]", "[1,2]"), 2, R"(tensor "a" begins at 1, but the previous one ends at 0)");
  refuse(tensor_header("a", "[2]", "[0,2]") + "," + tensor_header("b", "[2]", "[1,3]"), 3, "overlap");
  refuse(tensor_header("a", "[2]", "[0,2]") + "," + tensor_header("b", "[2]", "[3,5]"), 5, "leave gaps");
  refuse(tensor_header("a", "[2]", "[0,2]"), 1, "its tensors take 2 bytes, but the file has 1; it is truncated");
  refuse(R"("__metadata__":3)", 0, "__metadata__: is a single value");
  refuse(R"("__metadata__":{"k":1})", 0, "__metadata__.k: is not a text");
  refuse(R"("__metadata__":{"k":"v","k":"v"})", 0, "k: given twice");
  refuse(R"("__metadata__":{},"__metadata__":{})", 0, ":1: __metadata__: given twice; remove one");
  refuse(R"("evil\u001b[0m":{})", 0, R"(evil\x1b[0m.dtype)");
}

TEST(Safetensors, HaveTensorsOfAtMost64Dimensions)
{
  const auto ones = [](std::size_t count) {
    std::string list = "[1";
    for (std::size_t i = 1; i < count; ++i) list += ",1";
    return list + "]";
  };
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write("a", file_of("{" + tensor_header("a", ones(64), "[0,1]") + "}", 1)));
  EXPECT_EQ(file.facts("a").shape.size(), 64U);
  expect_refusal(file_of("{" + tensor_header("a", ones(65), "[0,1]") + "}", 1),
                 "a.shape: has 65 dimensions; at most 64 are supported");
}

TEST(Safetensors, AreRefusedBeforeALargeHeaderIsATreeInMemory)
{
  constexpr std::size_t many = 3'000'000;
  std::string zeros = "[0";
  for (std::size_t i = 1; i < many; ++i) zeros += ",0";
  expect_refusal(file_of("{" + tensor_header("a", zeros + "]", "[0,0]") + "}", 0), "a: has more than 100000 values");
  std::string lists = "[[]";
  for (std::size_t i = 1; i < many; ++i) lists += ",[]";
  expect_refusal(file_of("{" + tensor_header("a", lists + "]", "[0,0]") + "}", 0), "a: has more than 100000 values");
  std::string keys = R"({"")";
  for (std::size_t i = 1; i < many; ++i) keys += R"(:0,"")";
  expect_refusal(file_of(R"({"a\u001b":)" + keys + ":0}}", 0), R"(a\x1b: has more than 100000 values)");
  expect_refusal(file_of(R"({"__metadata__":)" + keys + ":0}}", 0), "__metadata__: has more than 100000 values");
}

TEST(Safetensors, AreRefusedWhenTheyAreNotFiles)
{
  const TemporaryFolder folder;
  EXPECT_THAT([&] { SafetensorsFile{folder.path()}; }, ThrowsMessage<InputError>(HasSubstr("is a directory")));
  EXPECT_THAT([&] { SafetensorsFile{folder.path() / "none"}; }, ThrowsMessage<InputError>(HasSubstr("no such file")));
  EXPECT_THAT([&] { SafetensorsFile{"/dev/null"}; }, ThrowsMessage<InputError>(HasSubstr("is a device or pipe")));
}

TEST(Safetensors, AreRefusedWhenGitLfsHasNotFetchedThem)
{
  const testing_support::TemporaryFolder folder;
  const auto file = folder.write("model.safetensors",
                                 "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 440449768\n");
  EXPECT_THAT([&] { SafetensorsFile{file}; },
              testing::ThrowsMessage<InputError>(
                  file.string() + ": is a pointer of git-lfs, not the file itself; fetch the file with: git lfs pull"));
}

TEST(Safetensors, ThatAreTruncatedWhileOpenAreAnErrorAndNoSignal)
{
  const TemporaryFolder folder;
  const auto path = folder.path() / "some.safetensors";
  write_safetensors(path, views_of({tensor_of("a", {1000}, std::vector<float>(1000, 1))}), {});
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, 2000);
  EXPECT_THAT([&] { file.read("a"); },
              ThrowsMessage<EnvironmentError>(HasSubstr("became shorter while it was in use")));
}

TEST(Safetensors, AreNotWrittenWithNamesThatReadersRefuse)
{
  const TemporaryFolder folder;
  const auto path = folder.path() / "some.safetensors";
  const auto write = [&](const std::vector<StoredTensor>& tensors, const Metadata& metadata = {}) {
    write_safetensors(path, views_of(tensors), metadata);
  };
  EXPECT_THAT(
      [&] {
        write({tensor_of("a", {}, {1}), tensor_of("a", {}, {2})});
      },
      ThrowsMessage<InputError>(HasSubstr(R"(two tensors are named "a")")));
  EXPECT_THAT([&] { write({tensor_of("__metadata__", {}, {1})}); },
              ThrowsMessage<InputError>(HasSubstr("cannot name a tensor")));
  EXPECT_THAT([&] { write({tensor_of("\xff", {}, {1})}); },
              ThrowsMessage<InputError>(HasSubstr("cannot name a tensor")));
  EXPECT_THAT([&] { write({}, {{"a", "\xff"}}); }, ThrowsMessage<InputError>(HasSubstr("metadata is not UTF-8")));
  EXPECT_THAT(
      [&] {
        write_safetensors(path, std::vector{TensorView{{"a", ElementType::F32, {2}}, {}}}, {});
      },
      ThrowsMessage<std::logic_error>(HasSubstr("as many bytes as its shape says")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// A file system of 64 KiB in memory; needs root.
class SmallDisk {
 public:
  explicit SmallDisk(const std::filesystem::path& folder) : folder_(folder)
  {
    std::filesystem::create_directory(folder);
    mounted_ = mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=64k") == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk()
  {
    if (mounted_) umount(folder_.c_str());
  }
  bool mounted() const { return mounted_; }

 private:
  std::filesystem::path folder_;
  bool mounted_ = false;
};

TEST(Safetensors, LeaveNothingOnAFullDisk)
{
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path() / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "only root mounts a disk";
  const auto path = folder.path() / "disk" / "some.safetensors";
  write_safetensors(path, views_of({tensor_of("a", {}, {1})}), {});
  EXPECT_THAT([&] { write_safetensors(path, views_of({tensor_of("a", {50'000}, std::vector<float>(50'000, 1))}), {}); },
              ThrowsMessage<EnvironmentError>(AllOf(
                  HasSubstr("some.safetensors: cannot write: No space left on device"), HasSubstr("takes 2000"))));
  EXPECT_EQ(floats_of(SafetensorsFile(path).read("a")), std::vector<float>{1});
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path() / "disk")) ++files;
  EXPECT_EQ(files, 1U);
}

class WeightFiles : public testing::Test {
 protected:
  void expect_refusal(const std::string& index, const std::string& message) const
  {
    folder_.write("model.safetensors.index.json", index);
    EXPECT_THAT([&] { Weights{folder_.path()}; },
                ThrowsMessage<InputError>(AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr(message))))
        << index;
  }
  void write(const std::string& name, const std::vector<StoredTensor>& tensors) const
  {
    write_safetensors(folder_.path() / name, views_of(tensors), {{"format", "pt"}});
  }

  TemporaryFolder folder_;
};

TEST_F(WeightFiles, AreOneFileOrShardsWithAnIndex)
{
  write("one.safetensors", {tensor_of("a", {1}, {1})});
  write("two.safetensors", {tensor_of("b", {1}, {2}), tensor_of("unlisted", {1}, {3})});
  folder_.write("model.safetensors.index.json",
                R"({"metadata": {"total_size": 8}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  const Weights shards(folder_.path());
  EXPECT_THAT(shards.names(), ElementsAre("a", "b"));
  EXPECT_EQ(floats_of(shards.read("b")), std::vector<float>{2});
  EXPECT_EQ(shards.find("unlisted"), nullptr);
  EXPECT_THAT([&] { shards.read("unlisted"); }, ThrowsMessage<InputError>(HasSubstr("has no tensor")));

  const Weights file(folder_.path() / "two.safetensors");
  EXPECT_EQ(floats_of(file.read("unlisted")), std::vector<float>{3});

  write("model.safetensors", {tensor_of("all", {1}, {4})});
  EXPECT_THAT(Weights(folder_.path()).names(), ElementsAre("all"));
}

TEST_F(WeightFiles, AreRefusedWhereTheIndexIsWrong)
{
  EXPECT_THAT([&] { Weights{folder_.path()}; }, ThrowsMessage<InputError>(HasSubstr("has neither")));
  write("one.safetensors", {tensor_of("a", {1}, {1})});
  expect_refusal("", "not JSON");
  expect_refusal("{}", "weight_map: missing");
  expect_refusal(R"({"weight_map": []})", "weight_map: is a list");
  expect_refusal(R"({"weight_map": {"a": 1}})", "weight_map.a: \"1\" is not the name of a file next to the index");
  for (const auto* name : {"", ".", "..", "../one.safetensors", "/etc/passwd", "sub/one.safetensors", "one\\u0000"}) {
    expect_refusal(fmt::format(R"({{"weight_map": {{"a": "{}"}}}})", name),
                   "is not the name of a file next to the index");
  }
  expect_refusal(R"({"weight_map": {"b": "one.safetensors"}})", "one.safetensors has no such tensor");
  expect_refusal(R"({"weight_map": {"a": "one.safetensors", "a": "one.safetensors"}})", "given twice");
  folder_.write("model.safetensors.index.json", R"({"weight_map": {"a": "none.safetensors"}})");
  EXPECT_THAT([&] { Weights{folder_.path()}; }, ThrowsMessage<InputError>(HasSubstr("none.safetensors: no such file")));
}

}  // namespace
}  // namespace isobar::exec::safetensors_test
