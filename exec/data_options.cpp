#include "exec/data_options.hpp"

#include "core/base/command_options.hpp"

#include <CLI/CLI.hpp>

namespace isobar::exec {

void add_data_options(CLI::App& command, DataOptions& options)
{
  add_file(command, "--data", options.train,
           "training data: MNLI pairs (TSV) for bert, tokens (.bin, .npy) for gpt and llama (default: synthetic "
           "data)");
  command.add_option("--data-type", options.type,
                     "numbers of the tokens in files without a header, also of --evaluate: uint16, uint32, int32 or "
                     "int64 (default: uint16; files that are evidently of another kind are refused)");
  add_file(command, "--evaluate", options.evaluation,
           "data of the same kind for an evaluation after the last step (default: no evaluation)");
  add_file(command, "--vocabulary", options.vocabulary,
           "WordPiece vocabulary of --data and --evaluate for bert (vocab.txt)");
}

}  // namespace isobar::exec
