"""The text that steps are calibrated on."""

#: Prose, documentation, code and numbers; the beginnings of "Alice's Adventures in
#: Wonderland" (1865) and of the Gettysburg Address (1863) among them.
TEXT = r'''
Once upon a time there was a small machine in a quiet house by the sea. Every morning it counted
the boats, and every evening it told the children how many had come home. "Seven," it said, "and
one of them is red." The children laughed, because they had painted it themselves.

A computer stores numbers as bits. To add two numbers, it adds their lowest bits first and carries
what is left; that takes 1 cycle here, 2 or 3 there, and in 1948 it took much longer. Programs are
lists of instructions: load, compute, store. If a result is needed before it is ready, the machine
waits. Most of the art is to let it wait for as little as possible.

def mean(values):
    total = sum(values)
    return total / len(values)  # raises ZeroDivisionError for an empty list

What is the capital of France? The capital of France is Paris, a city of two million people on the
river Seine. It is known for its museums, its bread and its bridges. Is it far from London? It is
about 340 kilometres, or two hours and sixteen minutes by train.

Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing
to do: once or twice she had peeped into the book her sister was reading, but it had no pictures
or conversations in it, "and what is the use of a book," thought Alice, "without pictures or
conversations?" So she was considering in her own mind (as well as she could, for the hot day made
her feel very sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the
trouble of getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran
close by her.

Return the index of the first element that is not less than x, as an integer. The list must be
sorted in ascending order; if it is not, the result is undefined and no exception is raised. The
optional arguments lo and hi may be used to specify a part of the list which should be considered;
by default the entire list is used. If key is given, it is called once for each comparison:

    >>> find([1, 3, 5, 8], 5)
    2
    >>> find([], 5)
    0

Raises ValueError if lo is negative. The time is O(log n), that of an insertion O(n), because all
elements behind it are moved.

Four score and seven years ago our fathers brought forth on this continent, a new nation,
conceived in Liberty, and dedicated to the proposition that all men are created equal. Now we are
engaged in a great civil war, testing whether that nation, or any nation so conceived and so
dedicated, can long endure. We are met on a great battle-field of that war.

int main(int argc, char **argv) {
    unsigned long long a = 0, b = 1;
    for (int i = 0; i < 20; i++) {
        printf("%d: %llu\n", i, a);
        unsigned long long next = a + b;
        a = b;
        b = next;
    }
    return 0;
}

Shopping list
1. Apples (2 kg), pears, a lemon
2. Flour, sugar, 250 g of butter
3. Milk; eggs if they are fresh

Dear Ms. Miller,

thank you for your letter of 12 March. We are sorry to hear that the lamp which you ordered on our
website (order no. 40-7731) arrived broken. A new one has been sent today by express mail and
should be with you on Friday. You need not return the old one. Please let us know at
help@example.com if there is anything else that we can do for you.

Yours sincerely,
Peter Brown

The cell is the smallest unit of life. Plants, animals and fungi have cells with a nucleus, which
holds most of the DNA; bacteria have none. Energy comes from mitochondria, in which sugar and
oxygen become carbon dioxide and water. A human body has about thirty-seven trillion cells of some
two hundred kinds, and most of them are replaced within ten years.

{"name": "sensor-12", "unit": "C", "values": [21.5, 21.7, null, 22.0], "valid": true}

User: Can you explain what a random number generator does, and why my program prints the same
numbers each time?
Assistant: A generator computes each number from the one before it, so the whole sequence follows
from where it starts, which is called the seed. Programs that set the seed to a constant always
print the same sequence. There are three ways to change that:

* Do not set a seed; most libraries then take one from the operating system.
* Set it from the clock, if nobody must be able to guess it.
* Use a generator that is made for secrets, such as the module `secrets`.

class Stack:
    """A list of items of which only the last one can be taken.

    Attributes:
        items: what is on the stack, the last one on top
        limit: the largest number of items, or None
    """

    def __init__(self, limit=None):
        self.items, self.limit = [], limit

    def push(self, item):
        if self.limit is not None and len(self.items) >= self.limit:
            raise OverflowError(f"expected at most {self.limit} items")
        self.items.append(item)

In the evening the wind turned to the north. They drew the boat up on the stones, and nobody spoke
of the brother who had not come back. The old man lit the stove. "Tomorrow," he said at last; and
she, who knew him, put a second cup on the table.

Water boils at 100 degrees Celsius at sea level, but at 93 on a mountain of 2,000 metres. If x + 3
= 10, then x = 7. A train that leaves at 8:45 and takes 1 h 50 min arrives at 10:35. The
population of the town grew from 4,120 in 1900 to 19,300 in 2001, or by about 1.5 percent a year.
'''.lstrip()

#: What weights of 4 bits are rounded by, too: more of the same kinds. The beginnings of novels by
#: Austen (1813), Melville (1851), Dickens (1859) and Wells (1898), of "The Origin of Species"
#: (1859) and of the American declaration (1776) are among it.
MORE = r"""
It is a truth universally acknowledged, that a single man in possession of a good fortune, must be
in want of a wife. However little known the feelings or views of such a man may be on his first
entering a neighbourhood, this truth is so well fixed in the minds of the surrounding families,
that he is considered as the rightful property of some one or other of their daughters.

Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in my
purse, and nothing particular to interest me on shore, I thought I would sail about a little and
see the watery part of the world. It is a way I have of driving off the spleen, and regulating the
circulation.

User: What is the difference between weather and climate?
Assistant: Weather is what the air does today: rain at noon, wind from the west, 14 degrees.
Climate is what it usually does in a place, as averages over thirty years or so. One cold week says
nothing about the climate, but if winters become milder decade after decade, the climate changes.

User: Give me three short tips for learning a language.
Assistant: 1. Practise every day, even if it is only for ten minutes.
2. Speak early, and do not be afraid of mistakes; people are usually kind.
3. Read things that interest you, with a dictionary near by, and write down whole sentences rather
than single words.

def read_table(path, sep=",", skip=0):
    "Read a table of numbers; returns a list of rows, each a list of floats."
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file):
            if number < skip or not line.strip():
                continue
            try:
                rows.append([float(cell) for cell in line.split(sep)])
            except ValueError as error:
                raise ValueError(f"{path}, line {number + 1}: {error}") from None
    return rows

It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of
foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of
Light, it was the season of Darkness, it was the spring of hope, it was the winter of despair.

When in the Course of human events, it becomes necessary for one people to dissolve the political
bands which have connected them with another, and to assume among the powers of the earth, the
separate and equal station to which the Laws of Nature and of Nature's God entitle them, a decent
respect to the opinions of mankind requires that they should declare the causes which impel them
to the separation.

Split the string at the last occurrence of sep, and return a 3-tuple containing the part before
the separator, the separator itself, and the part after it. If the separator is not found, return
two empty strings and the string itself. If maxsplit is given, at most that many splits are done,
the rightmost ones. Changed in version 3.2: None is accepted, too.

SELECT customer.name, COUNT(*) AS orders, SUM(price) AS total
FROM customer JOIN invoice ON invoice.customer_id = customer.id
WHERE invoice.day >= '2019-01-01' GROUP BY customer.name HAVING total > 100 ORDER BY total DESC;

No one would have believed in the last years of the nineteenth century that this world was being
watched keenly and closely by intelligences greater than man's and yet as mortal as his own; that
as men busied themselves about their various concerns they were scrutinised and studied, perhaps
almost as narrowly as a man with a microscope might scrutinise the transient creatures that swarm
and multiply in a drop of water.

Bread for two days. Mix 500 g of flour with 10 g of salt and 3 g of dry yeast. Add 340 ml of warm
water and stir until no flour is left. Cover the bowl and let it rest for twelve hours. Shape the
dough into a ball, wait another hour, and bake it at 230 degrees for 40 minutes in a closed pot.
Take off the lid for the last ten minutes, so that the crust becomes brown.

When we look to the individuals of the same variety or sub-variety of our older cultivated plants
and animals, one of the first points which strikes us, is, that they generally differ much more
from each other, than do the individuals of any one species or variety in a state of nature.

The committee met on Tuesday, 4 May, at 9.30 a.m. Present were Mr. Alvarez (chair), Ms. Chen, Dr.
Okafor and Mr. Lindqvist. The minutes of the last meeting were approved. Ms. Chen reported that
repairs of the bridge will cost $1.2 million, 15 percent more than planned, mainly because of the
price of steel. Dr. Okafor asked whether the old railing could be used again. It was agreed to ask
two more companies for an offer before the end of the month.

A function is called continuous at a point if its value changes by as little as one likes when its
argument changes by little enough. Let f(x) = x^2 and a = 3. For any e > 0 choose d = min(1, e/7).
If |x - 3| < d, then |x + 3| < 7, and so |x^2 - 9| = |x - 3| |x + 3| < 7 d <= e. The sum and the
product of continuous functions are continuous, and so is a quotient where its divisor is not 0.

<html>
  <head><title>Opening hours</title></head>
  <body>
    <h1>The museum</h1>
    <p>Open daily from 10 to 18, on Thursdays until 21. Closed on Mondays.</p>
    <ul><li>Adults: 12 euros</li><li>Children under 14: free</li></ul>
  </body>
</html>

"Have you seen the key?" asked Martha.
"Which one?"
"The small one, for the garden gate. It hung here yesterday."
Her father put down the newspaper, looked at her over his glasses, and smiled. "Then it must have
gone for a walk," he said, "for it is in the lock. I have been wondering all morning who let the
neighbour's goat in."

The Roman Empire reached its greatest extent in the year 117 under Trajan, when it stretched from
Britain to the Persian Gulf. Roads and ships carried grain, oil, wine, letters and soldiers. In 395
it was divided for good; the western part ended in 476, while the eastern one, with Constantinople
as its capital, lasted for almost another thousand years, until 1453.

template <typename T>
T largest(const std::vector<T>& values) {
    if (values.empty()) throw std::invalid_argument("expected at least one value");
    T best = values[0];
    for (size_t i = 1; i < values.size(); ++i)
        if (best < values[i]) best = values[i];
    return best;
}

To install the program, download the archive for your system, unpack it, and run the command
"setup". It asks where files shall be stored; press Enter to accept the directory that is shown. If
you see the message "Permission denied", you need the rights of an administrator. After a restart
the icon appears in the menu under Tools > Editors. To remove it again, use the control panel.

The heart is a muscle about as large as a fist. Its right half pumps blood through the lungs, where
it takes up oxygen, its left half through the rest of the body. At rest it beats 60 to 80 times a
minute and moves some five litres; during sport it can be more than twenty. Doctors measure the
pressure in the arteries with a cuff around the arm: 120 over 80 is considered normal for adults.

Mon 08:12  login     anna    10.0.0.14   ok
Mon 08:13  upload    anna    10.0.0.14   ok      report_final_v2.pdf (1,204 kB)
Mon 08:40  login     root    10.0.0.99   failed  wrong password (3 of 5)
Mon 08:41  warning   system  -           disk /dev/sda1 is 91% full

Seven years later the two friends met again at the station where they had parted. Both had become
grey; one limped a little. They sat down on the same bench, shared an apple, and for a long time
watched the trains without a word, as if each were waiting for the other to get up first.
""".lstrip()
