"""Synthetic training logs for the reader's bench, made anew from a seed each time."""

import json
import random
import uuid

WORDS = """
the of and to in a is that for it was on with as his they be at one have this from or had by
word but what some we can out other were all there when up use your how said an each she
which do their time if will way about many then them write would like so these her long make
thing see him two has look more day could go come did number sound no most people my over
know water than call first who may down side been now find any new work part take get place
made live where after back little only round man year came show every good me give our under
name very through just form sentence great think say help low line differ turn cause much
mean before move right boy old too same tell does set three want air well also play small end
put home read hand port large spell add even land here must big high such follow act why ask
men change went light kind off need house picture try us again animal point mother world near
build self earth father head stand own page should country found answer school grow study
still learn plant cover food sun four between state keep eye never last let thought city tree
cross farm hard start might story saw far sea draw left late run while press close night real
life few north open seem together next white children begin got walk example ease paper group
always music those both mark often letter until mile river car feet care second book carry
took science eat room friend began idea fish mountain stop once base hear horse cut sure watch
color face wood main enough plain girl usual young ready above ever red list though feel talk
bird soon body dog family direct pose leave song measure door product black short numeral
class wind question happen complete ship area half rock order fire south problem piece told
knew pass since top whole king space heard best hour better true during hundred five remember
step early hold west ground interest reach fast verb sing listen six table travel less morning
ten simple several vowel toward war lay against pattern slow center love person money serve
appear road map rain rule govern pull cold notice voice unit power town fine certain fly fall
lead cry dark machine note wait plan figure star box noun field rest correct able pound done
beauty drive stood contain front teach week final gave green oh quick develop ocean warm free
minute strong special mind behind clear tail produce fact street inch multiply nothing course
stay wheel full force blue object decide surface deep moon island foot system busy test record
boat common gold possible plane stead dry wonder laugh thousand ago ran check game shape
equate hot miss brought heat snow tire bring yes distant fill east paint language among
""".split()
"""The commonest words of English."""

RARER = """
became connection argument error failed memory device infinite completion expected valid
process signal address source network exception timeout interrupt resource driver socket
""".split()
"""Words that failures are told with; in prose each stands once in some twenty thousand words."""

RARER_SHARE = 0.001


def sentence(chance, words):
    """Give so many words of prose."""
    picked = chance.choices(WORDS, k=words)
    if chance.random() < words * RARER_SHARE:
        picked[chance.randrange(words)] = chance.choice(RARER)
    return " ".join(picked).capitalize() + "."


def usual_line(chance, number):
    """Give a line of an ordinary run: one shape comes again and again."""
    if number % 50 == 0:
        return f"saved a checkpoint of step {number} in {chance.uniform(1, 4):.2f} s"
    if number % 7 == 0:
        done = number % 1000
        return (
            f"Epoch {number // 1000}: {done // 10:3d}%|{'#' * (done // 100):10}| {done}/1000 "
            f"[{done // 60:02d}:{done % 60:02d}<03:20, {chance.uniform(3, 5):.2f}it/s, v_num=0]"
        )
    return (
        f"2026-01-31 12:{number // 60 % 60:02d}:{number % 60:02d},123 INFO trainer: "
        f"step {number} | "
        f"loss {chance.uniform(1, 9):.4f} | lr {chance.uniform(1, 3):.3e} | "
        f"{chance.randrange(9_000, 12_000)} tokens/s | grad norm {chance.random():.3f}"
    )


def unlike_line(chance, number):
    """Give a line whose like has not come before, digits apart."""
    match number % 4:
        case 0:
            metrics = {
                "run": str(uuid.UUID(int=chance.getrandbits(128))),
                "step": number,
                **{f"{chance.choice(WORDS)}_loss": chance.random() for _ in range(3)},
            }
            return json.dumps(metrics)
        case 1:
            return f"sample {number}: {sentence(chance, 24)}"
        case 2:
            name = uuid.UUID(int=chance.getrandbits(128))
            return f"loaded {name}.parquet ({chance.randrange(10**6)} rows) {sentence(chance, 6)}"
        case _:
            return f"[rank{number % 8}]: {sentence(chance, 12)} loss={chance.random():.6f}"


def failing_line(chance, number, samples):
    """Give a line; every second one is a failure text of the catalogue, told of some sample."""
    if number % 2:
        return usual_line(chance, number)
    name = uuid.UUID(int=chance.getrandbits(128))
    return f"[rank{number % 8}]: {chance.choice(samples)} ({name})"


def lines(make, seed, mib, *more):
    """Give so much of what `make` says, as bytes."""
    chance = random.Random(seed)
    made, size, number = [], 0, 0
    while size < mib << 20:
        made.append(make(chance, number, *more).encode())
        size += len(made[-1]) + 1
        number += 1
    return b"\n".join(made) + b"\n"
