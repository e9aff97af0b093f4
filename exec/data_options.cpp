#include "exec/data_options.hpp"

#include "core/base/command_options.hpp"

#include <CLI/CLI.hpp>

namespace isobar::exec {

void add_data_options(CLI::App& command, DataOptions& options)
{
  add_file(command, "--data", options.train,
           "training data: MNLI pairs (TSV) for bert, tokens (.bin, .npy) for gpt and llama (default: synthetic "
           "data)");
  add_file(command, "--evaluate", options.evaluation,
           "data of the same kind for an evaluation after the last step (default: no evaluation)");
  add_file(command, "--vocabulary", options.vocabulary,
           "WordPiece vocabulary of --data and --evaluate for bert (vocab.txt)");
}

}  // namespace isobar::exec
