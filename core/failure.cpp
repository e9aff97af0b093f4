#include "core/failure.hpp"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace isobar {

namespace {

std::string (*rewording)(const std::string&) = nullptr;

Failure reworded(Failure failure)
{
  if (rewording != nullptr) failure.text = rewording(failure.text);
  return failure;
}

/// Second base class of the exceptions that carry a failure.
class Carrier {
 public:
  explicit Carrier(Failure failure) : failure_(std::move(failure)) {}
  Carrier(const Carrier&) = default;
  Carrier& operator=(const Carrier&) = delete;
  virtual ~Carrier() = default;

  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
};

template <typename Error>
class Carrying : public Error, public Carrier {
 public:
  explicit Carrying(const Failure& failure) : Error(failure.text), Carrier(failure) {}
};

template <>
class Carrying<Interrupted> : public Interrupted, public Carrier {
 public:
  explicit Carrying(const Failure& failure) : Carrier(failure) {}
};

Failure failure_by_type(const std::exception& error)
{
  using Kind = Failure::Kind;
  if (dynamic_cast<const InputError*>(&error) != nullptr) {
    return {Kind::BadInput, std::nullopt, ExitCode::InputError, error.what()};
  }
  if (dynamic_cast<const EnvironmentError*>(&error) != nullptr) {
    return {Kind::Other, std::nullopt, ExitCode::EnvironmentError, error.what()};
  }
  if (dynamic_cast<const Interrupted*>(&error) != nullptr) {
    return {Kind::Other, std::nullopt, ExitCode::Interrupted, error.what()};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {Kind::OutOfMemory, std::nullopt, ExitCode::EnvironmentError, "out of memory"};
  }
  if (const auto* of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const auto text = fmt::format("{}: {}", shown(of_files->path1().string()), of_files->code().message());
    if (of_files->code() != std::errc::filename_too_long) {
      return {Kind::Other, std::nullopt, ExitCode::EnvironmentError, text};
    }
    return {Kind::BadInput, std::nullopt, ExitCode::InputError, text};
  }
  if (const auto* of_system = dynamic_cast<const std::system_error*>(&error)) {
    return {Kind::Other, std::nullopt, ExitCode::EnvironmentError, of_system->code().message()};
  }
  return {Kind::Other, std::nullopt, ExitCode::OurBug, error.what()};
}

/// Takes a number and the space after it from the front of a line.
std::optional<int> take_number(std::string_view& line)
{
  int number = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  const auto length = static_cast<std::size_t>(end - line.data());
  if (error != std::errc() || length == line.size() || line[length] != ' ') return std::nullopt;
  line.remove_prefix(length + 1);
  return number;
}

bool is_failure_code(int code)
{
  switch (ExitCode{code}) {
    case ExitCode::OurBug:
    case ExitCode::InputError:
    case ExitCode::EnvironmentError:
    case ExitCode::Infeasible:
    case ExitCode::CheckFailed:
    case ExitCode::Interrupted:
      return true;
    case ExitCode::Done:
      return false;
  }
  return false;
}

constexpr int no_rank = -1;

}  // namespace

Failure environment_failure(Failure::Kind kind, std::string text, std::optional<std::size_t> rank)
{
  return reworded({kind, rank, ExitCode::EnvironmentError, std::move(text)});
}

Failure failure_of(const std::exception& error)
{
  const auto* carrier = dynamic_cast<const Carrier*>(&error);
  return carrier != nullptr ? carrier->failure() : reworded(failure_by_type(error));
}

Failure failure_of(const std::exception_ptr& error)
{
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return failure_of(known);
  }
}

std::string line_of(const Failure& failure)
{
  if (failure.code == ExitCode::Interrupted) return Interrupted().what();
  if (failure.code == ExitCode::OurBug) return "a bug in Isobar, please report it: " + failure.text;
  return failure.text;
}

void throw_failure(const Failure& failure)
{
  const Failure thrown = reworded(failure);
  switch (thrown.code) {
    case ExitCode::InputError:
      throw Carrying<InputError>(thrown);
    case ExitCode::Interrupted:
      throw Carrying<Interrupted>(thrown);
    case ExitCode::OurBug:
      throw Carrying<std::logic_error>(thrown);
    default:
      throw Carrying<EnvironmentError>(thrown);
  }
}

std::string serialize_failure(const Failure& failure)
{
  const int rank = failure.rank ? static_cast<int>(*failure.rank) : no_rank;
  return fmt::format("{} {} {} {}", static_cast<int>(failure.kind), rank, static_cast<int>(failure.code), failure.text);
}

std::optional<Failure> parse_failure(std::string_view line)
{
  const auto kind = take_number(line);
  const auto rank = kind ? take_number(line) : std::nullopt;
  const auto code = rank ? take_number(line) : std::nullopt;
  if (!code || *kind < 0 || *kind > static_cast<int>(Failure::Kind::BadInput)) return std::nullopt;
  if (*rank < no_rank || !is_failure_code(*code)) return std::nullopt;
  Failure failure{Failure::Kind{*kind}, std::nullopt, ExitCode{*code}, std::string(line)};
  if (*rank != no_rank) failure.rank = static_cast<std::size_t>(*rank);
  return reworded(std::move(failure));
}

void reword_failures(std::string (*reword)(const std::string& text))
{
  rewording = reword;
}

}  // namespace isobar
