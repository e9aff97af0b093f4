#include "sim/platform/trial_load.hpp"

#include "core/base/child_process.hpp"
#include "core/errors.hpp"
#include "sim/platform/machines.hpp"
#include "sim/platform/platform_check.hpp"
#include "sim/platform/routes.hpp"
#include "sim/platform/simgrid_message.hpp"

#include <fmt/format.h>

#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cstddef>
#include <exception>

namespace isobar::sim {

namespace {

constexpr Seconds longest_load(600);

/// Memory shared with the child that outlives it: the fault of the step that it died in, and SimGrid's stderr.
class CrashRecord {
 public:
  CrashRecord()
      : errors_(memfd_create("simgrid", MFD_CLOEXEC)),
        fault_(mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
  {
    if (errors_ < 0 || fault_ == MAP_FAILED) throw EnvironmentError("no memory to share with a child process");
  }
  CrashRecord(const CrashRecord&) = delete;
  CrashRecord& operator=(const CrashRecord&) = delete;
  ~CrashRecord()
  {
    munmap(fault_, capacity);
    close(errors_);
  }

  /// In the child: redirects stderr to this record.
  void catch_errors() const { dup2(errors_, STDERR_FILENO); }
  /// In the child: sets the fault to report if the child dies now.
  void expect(const std::string& fault) const
  {
    const auto length = std::min(fault.size(), capacity - 1);
    fault.copy(static_cast<char*>(fault_), length);
    static_cast<char*>(fault_)[length] = '\0';
  }

  /// "" when none was expected.
  std::string fault() const { return static_cast<const char*>(fault_); }
  std::string first_error() const
  {
    std::string text(capacity, '\0');
    const ssize_t count = pread(errors_, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    return first_line_of_simgrid(text);
  }

 private:
  static constexpr std::size_t capacity = 4096;
  int errors_;
  void* fault_;
};

void load_and_check(const std::string& file, const EngineSource& source, const PlatformScan& scan,
                    const Endpoints& endpoints, const CrashRecord& record)
{
  try {
    load_into_engine(source);
  } catch (const std::exception& error) {
    throw InputError(fault_of_simgrid(file, source.file, error.what()));
  }
  const Routes routes(scan);
  check_speeds(file, endpoints);
  const ExpectFault expect_fault = [&record](const std::string& fault) { record.expect(fault); };
  check_routes(file, endpoints, routes, expect_fault);
  machine_links(file, endpoints, routes, expect_fault);
}

}  // namespace

void load_in_child(const std::string& file, const EngineSource& source, const PlatformScan& scan,
                   const Endpoints& endpoints)
{
  const CrashRecord record;
  const auto result = run_in_child(
      [&]() -> std::string {
        record.catch_errors();
        load_and_check(file, source, scan, endpoints, record);
        return {};
      },
      longest_load);
  if (result.failure && result.failure->kind == Failure::Kind::Died) {
    const std::string error = record.first_error();
    const std::string reason = error.empty() ? result.failure->text : error;
    if (record.fault().empty()) throw InputError(file, fmt::format("SimGrid cannot load it: {}", reason));
    throw InputError(fmt::format("{} (SimGrid: {})", record.fault(), reason));
  }
  if (result.failure && result.failure->kind == Failure::Kind::Silent) {
    throw InputError(file, fmt::format("SimGrid takes more than {:.0f} s to load it", longest_load.value));
  }
  result.output_or_throw();
}

}  // namespace isobar::sim
