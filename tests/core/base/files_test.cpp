#include "core/base/files.hpp"

#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <thread>

namespace isobar::files_test {
namespace {

namespace fs = std::filesystem;

/// A temporary folder that counts its files.
struct Folder {
  testing_support::TemporaryFolder temporary;
  fs::path path = temporary.path();
  std::size_t files() const
  {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
};

TEST(ReadFile, RefusesEndlessFiles)
{
  EXPECT_THAT([] { read_file("/dev/zero"); },
              testing::ThrowsMessage<InputError>(
                  "/dev/zero: is not a regular file and has more than 1 GiB; write it into a file"));
}

TEST(WriteAll, EndsAtARequestToStopWhileNobodyReadsThePipe)
{
  catch_interrupts();
  std::array<int, 2> pipe_ends = {};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  const int capacity = fcntl(pipe_ends[1], F_GETPIPE_SZ);
  const pthread_t writer = pthread_self();
  std::thread stopper([&] {
    for (int waiting = 0; waiting < capacity;) ioctl(pipe_ends[0], FIONREAD, &waiting);
    pthread_kill(writer, SIGINT);
  });
  EXPECT_THROW(write_all(pipe_ends[1], std::string(2 * static_cast<std::size_t>(capacity), 'x')), Interrupted);
  stopper.join();
  for (const int end : pipe_ends) close(end);
  forget_interrupts();
}

TEST(WriteAll, SaysThatAWriteFailed)
{
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  EXPECT_FALSE(write_all(full, "x"));
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_TRUE(write_all(full, ""));
  close(full);
}

TEST(ReadFile, ReadsAPipeToItsEnd)
{
  const Folder folder;
  const fs::path pipe = folder.path / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&pipe] { std::ofstream(pipe) << std::string(3'000'000, 'x'); });
  EXPECT_EQ(read_file(pipe), std::string(3'000'000, 'x'));
  writer.join();
}

TEST(WriteFileAtomically, ReplacesTheFileAndLeavesNothingElse)
{
  const Folder folder;
  write_file_atomically(folder.path / "a", "one");
  write_file_atomically(folder.path / "a", "two");
  EXPECT_EQ(read_file(folder.path / "a"), "two");
  EXPECT_EQ(folder.files(), 1u);
}

TEST(WriteFileAtomically, RefusesToReplaceAReadOnlyFile)
{
  const Folder folder;
  const fs::path file = folder.path / "kept";
  write_file_atomically(file, "old");
  fs::permissions(file, fs::perms::owner_read);
  EXPECT_THAT([&] { write_file_atomically(file, "new"); },
              testing::ThrowsMessage<EnvironmentError>(file.string() +
                                                       ": is read-only; make it writable, or name another file"));
  EXPECT_EQ(read_file(file), "old");
  EXPECT_EQ(folder.files(), 1u);
}

TEST(WriteFileAtomically, WritesThroughASymbolicLink)
{
  const Folder folder;
  write_file_atomically(folder.path / "target", "old");
  fs::create_symlink("target", folder.path / "link");
  write_file_atomically(folder.path / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder.path / "link"));
  EXPECT_EQ(read_file(folder.path / "target"), "new");
}

TEST(WriteFileAtomically, CreatesTheTargetOfADanglingSymbolicLink)
{
  const Folder folder;
  fs::create_symlink("target", folder.path / "link");
  fs::create_symlink("link", folder.path / "link of link");
  write_file_atomically(folder.path / "link of link", "new");
  EXPECT_TRUE(fs::is_symlink(folder.path / "link"));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder.path / "target")));
  EXPECT_EQ(read_file(folder.path / "target"), "new");
}

TEST(WriteFileAtomically, WritesToADeviceDirectly)
{
  write_file_atomically("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(WriteFileAtomically, ContinuesTheFileThatADescriptorWasRedirectedTo)
{
  const Folder folder;
  write_file_atomically(folder.path / "a", "old ");
  const int descriptor = open((folder.path / "a").c_str(), O_WRONLY | O_APPEND);
  const fs::path links = "/proc/self/fd";
  write_file_atomically(links / std::to_string(descriptor), "new ");
  fs::create_symlink(links / std::to_string(descriptor), folder.path / "link");
  write_file_atomically(folder.path / "link", "newest");
  close(descriptor);
  EXPECT_EQ(read_file(folder.path / "a"), "old new newest");

  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  write_file_atomically(links / std::to_string(ends[1]), "x");
  char arrived = 0;
  EXPECT_EQ(read(ends[0], &arrived, 1), 1);
  EXPECT_EQ(arrived, 'x');
  for (const int end : ends) close(end);
}

TEST(WriteFileAtomically, KeepsTheFilesPermissions)
{
  const Folder folder;
  write_file_atomically(folder.path / "a", "old");
  fs::permissions(folder.path / "a", fs::perms::owner_read | fs::perms::owner_write);
  write_file_atomically(folder.path / "a", "new");
  EXPECT_EQ(fs::status(folder.path / "a").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(WriteFileAtomically, ReportsAFullDisk)
{
  EXPECT_THAT([] { write_file_atomically("/dev/full", "x"); },
              testing::ThrowsMessage<EnvironmentError>("/dev/full: cannot write: No space left on device"));
}

TEST(WriteFileAtomically, ReportsAMissingFolder)
{
  EXPECT_THAT(
      [] { write_file_atomically("no/such/folder/a", "x"); },
      testing::ThrowsMessage<EnvironmentError>("no/such/folder/a: cannot write there: No such file or directory"));
}

TEST(TemporaryFile, IsDeletedUnlessItIsKept)
{
  const Folder folder;
  write_file_atomically(folder.path / "a", "old");
  {
    TemporaryFile file(folder.path / "a");
    file.write("new");
    EXPECT_EQ(read_file(file.name()), "new");
  }
  EXPECT_EQ(read_file(folder.path / "a"), "old");
  EXPECT_EQ(folder.files(), 1u);
}

TEST(TemporaryFile, IsGoneWithAKilledProcessWhereFilesNeedNoName)
{
  const Folder folder;
  const int nameless = open(folder.path.c_str(), O_TMPFILE | O_WRONLY, 0600);
  if (nameless < 0) GTEST_SKIP() << "the file system has no files without a name";
  close(nameless);
  const pid_t child = fork();
  if (child == 0) {
    TemporaryFile file(folder.path / "a");
    file.write("new");
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(folder.files(), 0u);
}

TEST(TemporaryFile, MayBeOpenedByItsName)
{
  const Folder folder;
  TemporaryFile file(folder.path / "a");
  std::ofstream(file.name()) << "new";
  file.keep();
  EXPECT_EQ(read_file(folder.path / "a"), "new");
  EXPECT_EQ(folder.files(), 1u);
}

TEST(ReadFile, ReportsWhatIsWrong)
{
  EXPECT_THAT([] { read_file("no/such/file"); }, testing::ThrowsMessage<InputError>("no/such/file: no such file"));
  EXPECT_THAT([] { read_file("/tmp"); }, testing::ThrowsMessage<InputError>("/tmp: is a directory; name a file"));
}

TEST(ReadFile, RefusesAPointerOfGitLfs)
{
  const Folder folder;
  const auto file =
      folder.temporary.write("config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n");
  EXPECT_THAT([&] { read_file(file); },
              testing::ThrowsMessage<InputError>(
                  file.string() + ": is a pointer of git-lfs, not the file itself; fetch the file with: git lfs pull"));
}

TEST(Fingerprint, IsFnv1a)
{
  // Published test values of 64-bit FNV-1a.
  EXPECT_EQ(fingerprint(""), "cbf29ce484222325");
  EXPECT_EQ(fingerprint("a"), "af63dc4c8601ec8c");
  EXPECT_EQ(fingerprint("foobar"), "85944171f73967e8");
}

}  // namespace
}  // namespace isobar::files_test
