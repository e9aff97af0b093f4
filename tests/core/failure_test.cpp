#include "core/failure.hpp"

#include "core/base/interrupt.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace isobar::failure_test {
namespace {

using Kind = Failure::Kind;

const std::vector<Kind> kinds = {Kind::Other, Kind::PeerClosed, Kind::DeadlinePassed, Kind::Cancelled,
                                 Kind::Died,  Kind::Silent,     Kind::OutOfMemory,    Kind::BadInput};
const std::vector<ExitCode> codes = {ExitCode::OurBug,     ExitCode::InputError,  ExitCode::EnvironmentError,
                                     ExitCode::Infeasible, ExitCode::CheckFailed, ExitCode::Interrupted};

void expect_equal(const Failure& found, const Failure& expected)
{
  EXPECT_EQ(found.kind, expected.kind);
  EXPECT_EQ(found.rank, expected.rank);
  EXPECT_EQ(found.code, expected.code);
  EXPECT_EQ(found.text, expected.text);
}

/// The failure of the exception that is caught when `thrown` is thrown.
template <typename Error>
Failure caught_as(const Failure& thrown)
{
  try {
    throw_failure(thrown);
  } catch (const Error& error) {
    return failure_of(error);
  }
}

TEST(Failure, SurvivesSerializingAndThrowing)
{
  for (const auto kind : kinds) {
    for (const auto code : codes) {
      for (const auto rank : {std::optional<std::size_t>(), std::optional<std::size_t>(12)}) {
        for (const std::string text : {"", " two words\nand a line ", "0 1 2 3"}) {
          const Failure failure = {kind, rank, code, text};
          const auto received = parse_failure(serialize_failure(failure));
          ASSERT_TRUE(received);
          expect_equal(*received, failure);
          if (code == ExitCode::Interrupted) continue;  // its text is always the same
          expect_equal(caught_as<std::exception>(failure), failure);
        }
      }
    }
  }
}

TEST(Failure, IsThrownWithTheTypeOfItsExitCode)
{
  const auto with = [](ExitCode code) { return Failure{Kind::Other, 3, code, "what"}; };
  EXPECT_EQ(caught_as<InputError>(with(ExitCode::InputError)).rank, 3U);
  EXPECT_EQ(caught_as<EnvironmentError>(with(ExitCode::EnvironmentError)).rank, 3U);
  EXPECT_EQ(caught_as<Interrupted>(with(ExitCode::Interrupted)).rank, 3U);
  EXPECT_EQ(caught_as<std::logic_error>(with(ExitCode::OurBug)).rank, 3U);
}

TEST(Failure, FollowsFromTheTypeOfAnExceptionThatCarriesNone)
{
  const auto expect = [](const std::exception& error, Kind kind, ExitCode code, const std::string& text) {
    expect_equal(failure_of(error), {kind, std::nullopt, code, text});
  };
  expect(InputError("x.yaml:1", "wrong"), Kind::BadInput, ExitCode::InputError, "x.yaml:1: wrong");
  expect(EnvironmentError("the disk is full"), Kind::Other, ExitCode::EnvironmentError, "the disk is full");
  expect(Interrupted(), Kind::Other, ExitCode::Interrupted, "interrupted");
  expect(std::bad_alloc(), Kind::OutOfMemory, ExitCode::EnvironmentError, "out of memory");
  expect(std::logic_error("a vector is too long"), Kind::Other, ExitCode::OurBug, "a vector is too long");
  const auto of_file = [](std::errc code) {
    return std::filesystem::filesystem_error("cannot", "a\nb", std::make_error_code(code));
  };
  expect(of_file(std::errc::permission_denied), Kind::Other, ExitCode::EnvironmentError, "a\\x0ab: Permission denied");
  expect(of_file(std::errc::filename_too_long), Kind::BadInput, ExitCode::InputError, "a\\x0ab: File name too long");
}

TEST(Failure, IsNotParsedFromMalformedText)
{
  for (const auto* text : {"", "0", "0 1", "0 1 3", "x 1 3 text", "0 x 3 text", "0 1 x text", "8 1 3 text",
                           "-1 1 3 text", "0 -2 3 text", "0 1 0 text", "0 1 6 text", "0 1 129 text", " 0 1 3 text",
                           "0  1 3 text", "0 99999999999 3 text", "+0 1 3 text"}) {
    EXPECT_FALSE(parse_failure(text)) << text;
  }
}

TEST(Failure, IsPrintedByItsExitCode)
{
  EXPECT_EQ(line_of({Kind::Other, {}, ExitCode::EnvironmentError, "the disk is full"}), "the disk is full");
  EXPECT_EQ(line_of({Kind::Other, 1, ExitCode::Interrupted, "rank 1 (b): signal"}), "interrupted");
  EXPECT_EQ(line_of({Kind::Other, {}, ExitCode::OurBug, "no stage"}), "a bug in Isobar, please report it: no stage");
}

}  // namespace
}  // namespace isobar::failure_test
