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

/// Owns a duplicated descriptor; -1 when the process could open no more.
struct Duplicate {
  explicit Duplicate(int owned) : descriptor(owned) {}
  Duplicate(const Duplicate&) = delete;
  Duplicate& operator=(const Duplicate&) = delete;
  ~Duplicate()
  {
    if (descriptor >= 0) close(descriptor);
  }

  int descriptor;
};

}  // namespace

void say(const std::string& lines)
{
  std::fputs(shown_line(lines).c_str(), stderr);
}

std::function<void(const std::string& lines)> say_here()
{
  const auto here = std::make_shared<const Duplicate>(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  return [here](const std::string& lines) { dprintf(here->descriptor, "%s", shown_line(lines).c_str()); };
}

}  // namespace isobar
