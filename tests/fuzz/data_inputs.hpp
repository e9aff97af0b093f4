#pragma once

#include "exec/data/mnli.hpp"
#include "exec/data/token_file.hpp"
#include "exec/data/wordpiece.hpp"
#include "tests/fuzz/inputs.hpp"

#include <fmt/format.h>

#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <string>

/// Fuzz targets for training data. The readers take files, so each process has one in memory.
namespace isobar::fuzz {

/// The name of a file that holds `text` until the next call.
inline std::string file_with(const std::string& text)
{
  static const int file = memfd_create("input", MFD_CLOEXEC);
  const bool written =
      ftruncate(file, 0) == 0 && pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  ensure(written, "memory suffices for an input");
  return fmt::format("/proc/self/fd/{}", file);
}

inline void token_file(const std::string& text)
{
  constexpr std::uint64_t vocabulary = 50257;
  const std::string name = file_with(text);
  try {
    const exec::TokenFile file(name, vocabulary);
    ensure(file.size() >= 1 && file.size() <= text.size() / 2, "a token has at least two bytes");
    const auto tokens = file.read(0, file.size());
    ensure(tokens.size() == file.size(), "every token is read");
    const std::uint64_t middle = file.size() / 2;
    const auto half = file.read(middle, file.size() - middle);
    ensure(std::equal(half.begin(), half.end(), tokens.end() - static_cast<std::ptrdiff_t>(half.size())),
           "a window equals the same part of the whole");
    for (const auto token : tokens) {
      ensure(token >= 0 && static_cast<std::uint64_t>(token) < vocabulary, "a token is in the vocabulary");
    }
  } catch (const InputError& fault) {
    check_message(fault, name);
  }
}

inline void mnli(const std::string& text)
{
  const std::string name = file_with(text);
  try {
    const exec::MnliFile file(name);
    ensure(file.size() >= 1, "a file has a pair");
    for (std::uint64_t i = 0; i < file.size(); ++i) {
      const auto pair = file.pair(i);
      ensure(pair.label >= 0 && static_cast<std::uint64_t>(pair.label) < exec::mnli_classes, "a label is a class");
      for (const auto sentence : {pair.premise, pair.hypothesis}) {
        ensure(text.find(sentence) != std::string::npos && sentence.find_first_of("\t\n") == std::string_view::npos,
               "a sentence is one column");
      }
    }
  } catch (const InputError& fault) {
    check_message(fault, name);
  }
}

/// The input is a vocabulary and, after the first byte 0, a text.
inline void wordpiece(const std::string& text)
{
  const auto end = std::min(text.find('\0'), text.size());
  const std::string name = file_with(text.substr(0, end));
  try {
    const exec::WordPiece pieces(name);
    const auto sentence = text.substr(std::min(text.size(), end + 1));
    const auto tokens = pieces.encode(sentence);
    ensure(tokens.size() <= 3 * sentence.size(), "a character has at most three pieces");
    for (const auto token : tokens) {
      ensure(token >= 0 && static_cast<std::uint64_t>(token) < pieces.vocabulary(), "a piece is in the vocabulary");
    }
    ensure(pieces.encode(sentence + " \n" + sentence).size() == 2 * tokens.size(), "words are tokenised separately");
  } catch (const InputError& fault) {
    check_message(fault, name);
  }
}

}  // namespace isobar::fuzz
