#include "exec/net/handshake.hpp"

#include "core/errors.hpp"
#include "exec/net/secret.hpp"
#include "tests/exec/net/tcp_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <sys/stat.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

namespace isobar::exec {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

/// Both sides of one handshake, and what each has said.
struct Talk {
  explicit Talk(const Secret& of_caller, const Secret& of_acceptor, std::string_view what_for = "link 0 to 1")
      : caller(of_caller, purpose_of(what_for)), acceptor(of_acceptor), claim(caller.claim(acceptor.challenge()))
  {
  }

  InitiatorHandshake caller;
  AcceptorHandshake acceptor;
  Claim claim;
};

template <typename Part>
std::span<std::byte> bytes_of(Part& part)
{
  return std::as_writable_bytes(std::span(&part, 1));
}

std::vector<std::byte> copy_of(const Key& key)
{
  return {key.bytes().begin(), key.bytes().end()};
}

class Handshake : public testing::Test {
 protected:
  std::shared_ptr<const Secret> secret = test_secret();
  std::shared_ptr<const Secret> other = test_secret("what somebody else has for a secret");
};

TEST_F(Handshake, ProvesTheSecretBothWaysAndTellsThePurpose)
{
  Talk talk(*secret, *secret, "link 3 to 4");
  ASSERT_TRUE(talk.acceptor.is_proved_by(talk.claim));
  EXPECT_EQ(text_of(talk.claim.purpose), "link 3 to 4");
  EXPECT_EQ(talk.caller.reason_of(talk.acceptor.verdict("")), "");
  EXPECT_EQ(talk.caller.reason_of(talk.acceptor.verdict("it is rank 7")), "it is rank 7");
  EXPECT_EQ(copy_of(talk.caller.session_key()), copy_of(talk.acceptor.session_key()));
}

TEST_F(Handshake, FailsForACallerWithAnotherSecret)
{
  Talk talk(*other, *secret);
  EXPECT_FALSE(talk.acceptor.is_proved_by(talk.claim));
}

TEST_F(Handshake, FailsForAnAcceptorWithAnotherSecret)
{
  Talk talk(*secret, *other);
  talk.acceptor.is_proved_by(talk.claim);
  EXPECT_EQ(talk.caller.reason_of(talk.acceptor.verdict("")), std::nullopt);
}

TEST_F(Handshake, TakesNoClaimWithAnyBitChanged)
{
  Talk talk(*secret, *secret);
  for (std::size_t bit = 0; bit < 8 * sizeof(Claim); ++bit) {
    Claim changed = talk.claim;
    bytes_of(changed)[bit / 8] ^= std::byte(1U << bit % 8);
    EXPECT_FALSE(talk.acceptor.is_proved_by(changed)) << bit;
  }
  EXPECT_TRUE(talk.acceptor.is_proved_by(talk.claim));
}

TEST_F(Handshake, TakesNoVerdictWithAnyBitChanged)
{
  Talk talk(*secret, *secret);
  ASSERT_TRUE(talk.acceptor.is_proved_by(talk.claim));
  const Verdict verdict = talk.acceptor.verdict("it has 2 ranks, not 3");
  for (std::size_t bit = 0; bit < 8 * sizeof(Verdict); ++bit) {
    Verdict changed = verdict;
    bytes_of(changed)[bit / 8] ^= std::byte(1U << bit % 8);
    EXPECT_EQ(talk.caller.reason_of(changed), std::nullopt) << bit;
  }
}

TEST_F(Handshake, TakesNothingThatWasSaidInAnotherOne)
{
  Talk recorded(*secret, *secret);
  ASSERT_TRUE(recorded.acceptor.is_proved_by(recorded.claim));
  const Verdict verdict = recorded.acceptor.verdict("");
  Talk later(*secret, *secret);
  EXPECT_FALSE(later.acceptor.is_proved_by(recorded.claim));
  EXPECT_EQ(later.caller.reason_of(verdict), std::nullopt);
  EXPECT_NE(copy_of(later.caller.session_key()), copy_of(recorded.caller.session_key()));
}

TEST_F(Handshake, IsNotAnsweredByItsOwnWords)
{
  // A caller who reaches a caller, and an acceptor who hears itself.
  Talk talk(*secret, *secret);
  Verdict mirrored;
  mirrored.proof = talk.claim.proof;
  EXPECT_EQ(talk.caller.reason_of(mirrored), std::nullopt);
  talk.acceptor.is_proved_by(talk.claim);
  Claim reflected = talk.claim;
  reflected.proof = talk.acceptor.verdict("").proof;
  EXPECT_FALSE(talk.acceptor.is_proved_by(reflected));
}

TEST_F(Handshake, SaysOtherBytesEachTime)
{
  std::set<Nonce> said;
  for (int i = 0; i < 100; ++i) {
    Talk talk(*secret, *secret);
    said.insert(talk.acceptor.challenge().nonce);
    said.insert(talk.claim.nonce);
  }
  EXPECT_EQ(said.size(), 200);
}

TEST_F(Handshake, CutsAReasonThatIsTooLong)
{
  Talk talk(*secret, *secret);
  ASSERT_TRUE(talk.acceptor.is_proved_by(talk.claim));
  EXPECT_EQ(talk.caller.reason_of(talk.acceptor.verdict(std::string(500, 'x'))), std::string(128, 'x'));
}

TEST_F(Handshake, BelievesSidesThatKnowTheSameWordsAndNoOthers)
{
  rc::check([](const std::string& one, const std::string& another, const std::string& what_for) {
    const auto words = [](const std::string& text) { return "sixteen bytes at least " + text; };
    const Secret left("test", words(one));
    const Secret right("test", words(another));
    Talk talk(left, right, what_for.substr(0, 128));
    RC_ASSERT(talk.acceptor.is_proved_by(talk.claim) == (one == another));
    RC_ASSERT(talk.caller.reason_of(talk.acceptor.verdict("")).has_value() == (one == another));
  });
}

TEST_F(Handshake, HasNoPurposeThatDoesNotFit)
{
  EXPECT_THAT([] { purpose_of(std::string(129, 'x')); },
              testing::ThrowsMessage<std::logic_error>("a purpose has at most 128 bytes"));
}

class SecretTest : public testing::Test {
 protected:
  SecretTest() : folder_(std::filesystem::path(testing::TempDir()) / std::to_string(::getpid()))
  {
    std::filesystem::create_directory(folder_);
  }
  ~SecretTest() override { std::filesystem::remove_all(folder_); }

  std::string file_of(const std::string& words, mode_t mode = 0600) const
  {
    auto file = (folder_ / "secret").string();
    std::ofstream(file, std::ios::trunc) << words;
    EXPECT_EQ(::chmod(file.c_str(), mode), 0);
    return file;
  }

  static std::vector<std::byte> mark_of(const Secret& secret) { return copy_of(secret.key("test")); }

 private:
  std::filesystem::path folder_;
};

const std::string words = "four words of a secret";

TEST_F(SecretTest, ComesFromAFileWithoutTheEndOfItsLine)
{
  const auto expected = mark_of(Secret("test", words));
  for (const char* end : {"", "\n", "\r\n"}) EXPECT_EQ(mark_of(*secret_from_file(file_of(words + end))), expected);
  EXPECT_NE(mark_of(*secret_from_file(file_of(words + "\n\n"))), expected);
  EXPECT_NE(mark_of(*secret_from_file(file_of(words + " "))), expected);
}

TEST_F(SecretTest, IsNotTakenFromAFileThatOthersMayReadOrChange)
{
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0644, 0666}) {
    const auto file = file_of(words, mode);
    EXPECT_THAT(error_of([&] { secret_from_file(file); }),
                AllOf(HasSubstr(": others may read or change this secret (mode "), HasSubstr("); run: chmod 600 "),
                      Not(HasSubstr("four"))))
        << mode;
  }
  EXPECT_EQ(error_of([&] { secret_from_file(file_of(words, 0400)); }), "");
}

TEST_F(SecretTest, HasAShortestAndALongestLength)
{
  for (const std::size_t length : {0, 1, 15, 4097}) {
    const auto file = file_of(std::string(length, 'x') + "\n");
    EXPECT_EQ(error_of([&] { secret_from_file(file); }),
              file + ": a secret of " + std::to_string(length) +
                  " bytes; it must have 16 to 4096, such as those of: head -c 32 /dev/urandom | base64");
  }
  for (const std::size_t length : {16, 4096}) {
    EXPECT_EQ(error_of([&] { secret_from_file(file_of(std::string(length, 'x') + "\n")); }), "");
  }
}

TEST_F(SecretTest, IsMissedWithTheFilesName)
{
  EXPECT_THAT([] { secret_from_file("/no/such/file"); },
              testing::ThrowsMessage<InputError>("/no/such/file: no such file"));
}

TEST_F(SecretTest, ComesFromTheEnvironmentAndIsGoneFromThere)
{
  ::unsetenv(Secret::variable);
  EXPECT_EQ(secret_from_environment(), nullptr);
  std::string entry = std::string(Secret::variable) + "=" + words;
  ASSERT_EQ(::putenv(entry.data()), 0);  // the environment then shows this very string
  EXPECT_EQ(mark_of(*secret_from_environment()), mark_of(Secret("test", words)));
  EXPECT_EQ(std::getenv(Secret::variable), nullptr);
  EXPECT_THAT(entry, Not(HasSubstr("four")));
  ::setenv(Secret::variable, "short", 1);
  EXPECT_THAT(error_of([] { secret_from_environment(); }),
              AllOf(testing::StartsWith("ISOBAR_SECRET: a secret of 5 bytes; it must have 16 to 4096"),
                    Not(HasSubstr("short"))));
  EXPECT_EQ(std::getenv(Secret::variable), nullptr);
  ::setenv(Secret::variable, "", 1);  // as a variable that is not set
  EXPECT_EQ(secret_from_environment(), nullptr);
}

TEST_F(SecretTest, HasAKeyOfItsOwnForEachUse)
{
  const Secret secret("test", words);
  std::set<std::vector<std::byte>> keys;
  for (const auto* label : {"a", "b", "ab"}) {
    keys.insert(copy_of(secret.key(label)));
    for (const auto* context : {"a", "b"}) {
      keys.insert(copy_of(secret.key(label, std::as_bytes(std::span(std::string_view(context))))));
    }
  }
  EXPECT_EQ(keys.size(), 9);
  EXPECT_NE(mark_of(*random_secret()), mark_of(*random_secret()));
}

}  // namespace
}  // namespace isobar::exec
