#include "core/base/standard_streams.hpp"

#include "core/errors.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <cstdio>
#include <memory>

namespace isobar {

void open_standard_streams()
{
  int opened = open("/dev/null", O_RDWR);
  while (opened >= 0 && opened <= STDERR_FILENO) opened = dup(opened);
  if (opened > STDERR_FILENO) close(opened);
}

namespace {

std::string shown_line(const std::string& lines)
{
  return "isobar: " + printable(lines) + "\n";
}

/// Of an open file; -1 where there was no room for one.
struct Copy {
  explicit Copy(int of_file) : file(of_file) {}
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy()
  {
    if (file >= 0) close(file);
  }

  int file;
};

}  // namespace

void say(const std::string& lines)
{
  std::fputs(shown_line(lines).c_str(), stderr);
}

std::function<void(const std::string& lines)> say_here()
{
  const auto here = std::make_shared<const Copy>(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  return [here](const std::string& lines) { dprintf(here->file, "%s", shown_line(lines).c_str()); };
}

}  // namespace isobar
