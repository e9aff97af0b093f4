#include "core/base/files.hpp"

#include "core/base/git_lfs.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <utility>

namespace isobar {

namespace {

/// Calls `create` with `name` and six random letters, of which it updates `name`, until there is no such file yet.
/// Returns what `create` does: a descriptor, or less than 0 with errno.
int create_next_to(std::string& name, const std::function<int(const char*)>& create)
{
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz0123456789";
  constexpr int attempts = 100, more_letters = 6;
  const std::string target = name + ".";
  std::random_device random;
  for (int attempt = 1;; ++attempt) {
    name = target;
    for (int i = 0; i < more_letters; ++i) name += letters[random() % letters.size()];
    const int created = create(name.c_str());
    if (created >= 0 || errno != EEXIST || attempt == attempts) return created;
  }
}

std::string name_of_descriptor(int descriptor)
{
  return fmt::format("/proc/self/fd/{}", descriptor);
}

/// Opens a file without a name that may get one in `folder`; less than 0 where that cannot be.
int open_nameless(const std::filesystem::path& folder)
{
  const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (descriptor < 0 || access(name_of_descriptor(descriptor).c_str(), F_OK) == 0) return descriptor;
  close(descriptor);  // without /proc, it could get none
  return -1;
}

/// The descriptor of this process that a name such as /proc/self/fd/1 (the target of /dev/stdout) stands for.
std::optional<int> own_descriptor(const std::filesystem::path& name)
{
  std::error_code fault;
  const auto folder = std::filesystem::canonical(name.parent_path(), fault);
  if (fault || folder != fmt::format("/proc/{}/fd", getpid())) return std::nullopt;
  const std::string text = name.filename().string();
  int descriptor = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), descriptor);
  return status == std::errc{} && rest == text.data() + text.size() ? std::optional(descriptor) : std::nullopt;
}

}  // namespace

bool write_all(int descriptor, std::string_view content)
{
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) content.remove_prefix(static_cast<std::size_t>(written));
    if (!content.empty()) throw_if_interrupted();  // a signal ended the write
  }
  return true;
}

TemporaryFile::TemporaryFile(std::filesystem::path target) : target_(std::move(target))
{
  std::error_code ignored;
  constexpr int most_links = 40;  // as Linux follows
  std::optional<int> own = own_descriptor(target_);
  for (int link = 0; !own && link < most_links && std::filesystem::is_symlink(target_, ignored); ++link) {
    target_ = target_.parent_path() / std::filesystem::read_symlink(target_, ignored);  // may not exist
    own = own_descriptor(target_);
  }
  const bool is_new = !std::filesystem::exists(target_, ignored);
  replaces_ = !own && (is_new || std::filesystem::is_regular_file(target_, ignored));
  name_ = target_.string();
  struct stat facts = {};
  const bool has_mode = replaces_ && !is_new && stat(target_.c_str(), &facts) == 0;
  // Checks the mode, since root may write to every file.
  if (has_mode && (facts.st_mode & 0222U) == 0) {
    throw EnvironmentError(name_, "is read-only; make it writable, or name another file");
  }
  if (own) {
    descriptor_ = fcntl(*own, F_DUPFD_CLOEXEC, 0);  // keeps the offset of a redirected file
  } else if (!replaces_) {
    descriptor_ = open(name_.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    open_temporary();
  }
  if (descriptor_ < 0 && errno == EINTR) throw_if_interrupted();
  if (descriptor_ < 0) fail("cannot write there");
  const bool refuses = has_mode && fchmod(descriptor_, facts.st_mode & 07777U) != 0;
  if (refuses && errno != EPERM && errno != ENOTSUP) fail("cannot write there");  // file systems without permissions
}

TemporaryFile::~TemporaryFile()
{
  if (descriptor_ >= 0) close(descriptor_);
  if (descriptor_ >= 0 && replaces_ && !is_nameless_ && !kept_) unlink(name_.c_str());
}

/// Without a name, a file is gone however the process ends. Its permissions follow the process's umask, which no thread
/// can read without changing it for all threads.
void TemporaryFile::open_temporary()
{
  descriptor_ = open_nameless(target_.parent_path());
  is_nameless_ = descriptor_ >= 0;
  if (is_nameless_) {
    name_ = name_of_descriptor(descriptor_);
  } else {
    descriptor_ = create_next_to(
        name_, [](const char* name) { return open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  }
}

void TemporaryFile::write(std::string_view content)
{
  if (!replaces_) std::fflush(stdout);  // the target may be stdout
  if (!write_all(descriptor_, content)) fail("cannot write");
}

void TemporaryFile::keep(Flush flush)
{
  if (!replaces_) return;
  if (flush == Flush::ToDisk && fsync(descriptor_) != 0) fail("cannot write");
  if (is_nameless_) {
    std::string name = target_.string();
    const auto link = [&](const char* to) { return linkat(AT_FDCWD, name_.c_str(), AT_FDCWD, to, AT_SYMLINK_FOLLOW); };
    if (create_next_to(name, link) != 0) fail("cannot write");
    name_ = name;
    is_nameless_ = false;
  }
  if (rename(name_.c_str(), target_.c_str()) != 0) fail("cannot replace it");
  kept_ = true;
}

void TemporaryFile::fail(const char* what) const
{
  throw EnvironmentError(target_.string(), fmt::format("{}: {}", what, std::strerror(errno)));
}

std::string read_file(const std::filesystem::path& file)
{
  std::error_code fault;
  const auto status = std::filesystem::status(file, fault);
  if (status.type() == std::filesystem::file_type::none) throw InputError(shown(file.string()), fault.message());
  if (std::filesystem::is_directory(status)) throw InputError(file.string(), "is a directory; name a file");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw InputError(file.string(), std::filesystem::exists(status) ? "cannot be read" : "no such file");
  // A pipe or device may be endless.
  constexpr std::size_t most_of_a_pipe = std::size_t{1} << 30;
  constexpr std::size_t piece = std::size_t{1} << 20;
  const bool may_be_endless = !std::filesystem::is_regular_file(status);
  std::string content;
  while (stream) {
    throw_if_interrupted();
    const std::size_t before = content.size();
    content.resize(before + piece);
    stream.read(content.data() + before, piece);
    content.resize(before + static_cast<std::size_t>(stream.gcount()));
    if (may_be_endless && content.size() > most_of_a_pipe) {
      throw InputError(file.string(), "is not a regular file and has more than 1 GiB; write it into a file");
    }
  }
  refuse_lfs_pointer(content, file.string());
  return content;
}

void write_file_atomically(const std::filesystem::path& file, std::string_view content, Flush flush)
{
  TemporaryFile temporary(file);
  temporary.write(content);
  temporary.keep(flush);
}

std::string fingerprint(std::string_view content)
{
  ContentHash whole;
  whole.add(content);
  return whole.text();
}

void ContentHash::add(std::string_view piece)
{
  for (const char character : piece) hash_ = (hash_ ^ static_cast<unsigned char>(character)) * 0x100000001b3;
}

std::string ContentHash::text() const
{
  return fmt::format("{:016x}", hash_);
}

}  // namespace isobar
